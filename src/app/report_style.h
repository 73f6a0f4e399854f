// The report's style sheet and script. Internal to the report files of this folder.
#pragma once

namespace trainer::report {

inline constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--text:#1b2330;--quiet:#667085;--line:#e3e7ed;--hover:#1b233012;
--blue:#2f6fde;--orange:#e07b1f;--teal:#149c8e;--purple:#8a5bd6;--red:#cf4640;--pink:#d879a8;--green:#4b9a3a;--yellow:#c99a06;--grey:#98a1ae}
@media(prefers-color-scheme:dark){:root{--page:#12161c;--card:#1a2028;--text:#e6eaf0;--quiet:#98a3b3;--line:#2c3541;--hover:#ffffff14;
--blue:#6ea0ff;--orange:#f0a05a;--teal:#3fc9b8;--purple:#b08cf0;--red:#f0776f;--pink:#eba3c6;--green:#7cc667;--yellow:#e6c04a;--grey:#7f8997}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:24px;margin:0 0 2px;letter-spacing:-.01em}h2{font-size:17px;margin:0 0 12px}h3{font-size:14px;margin:14px 0 4px}
.quiet{color:var(--quiet);font-weight:400}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin-top:16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:12px;margin-top:18px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tile b{display:block;font-size:22px;font-weight:650;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.tile span{color:var(--quiet);font-size:13px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(320px,1fr));gap:8px 24px}
figure{margin:0 0 8px;min-width:0}figcaption{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;color:var(--quiet);margin-bottom:4px}
.legend{display:inline-flex;flex-wrap:wrap;gap:2px 14px;font-size:13px;color:var(--quiet)}
.key i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:5px;background:currentColor}
.key i.faint{opacity:.35}
svg{display:block;width:100%}svg.chart{height:auto}
.axis{fill:var(--quiet);font-size:12px;font-variant-numeric:tabular-nums}
.grid{stroke:var(--line);stroke-width:1;fill:none;vector-effect:non-scaling-stroke}.base{stroke:var(--quiet);opacity:.5}
.line{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linejoin:round}.line.faint{opacity:.35;stroke-width:1}
.dot{fill:var(--card);stroke:currentColor;stroke-width:2}.area{fill:currentColor;opacity:.75}
.column{fill:transparent}.column:hover{fill:var(--hover)}
.c-blue{color:var(--blue)}.c-orange{color:var(--orange)}.c-teal{color:var(--teal)}.c-purple{color:var(--purple)}.c-red{color:var(--red)}
.c-pink{color:var(--pink)}.c-green{color:var(--green)}.c-yellow{color:var(--yellow)}.c-grey{color:var(--grey)}
.bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:6px 14px;align-items:center;font-size:14px}
.bars i{display:block;height:14px;border-radius:3px;background:currentColor;min-width:1px}
.number{font-variant-numeric:tabular-nums;text-align:right}
.share{display:flex;height:22px;border-radius:5px;overflow:hidden;margin-bottom:8px}.share i{background:currentColor;min-width:2px}
details{margin-top:6px}summary{cursor:pointer;font-weight:600;padding:4px 0}
.tools{display:flex;justify-content:space-between;flex-wrap:wrap;gap:6px 20px;font-size:13px;color:var(--quiet);margin:4px 0 8px}
.tools input{vertical-align:middle;width:160px;accent-color:var(--blue)}
.lanes{display:grid;grid-template-columns:max-content minmax(0,1fr);border:1px solid var(--line);border-radius:8px;overflow:hidden}
.names{padding:0 10px;border-right:1px solid var(--line);font-size:12px}
.names>*{display:block;height:20px;line-height:20px;white-space:nowrap;color:var(--quiet)}.names b{color:var(--text);font-weight:600}
.scroll{overflow-x:auto}.canvas{width:calc(100% * var(--zoom,1));min-width:100%}
.ticks{position:relative;height:20px;border-bottom:1px solid var(--line);overflow:hidden}
.ticks span{position:absolute;font-size:11px;line-height:20px;color:var(--quiet);padding-left:4px;border-left:1px solid var(--line);white-space:nowrap}
.task{fill:currentColor;stroke:var(--card);stroke-width:1;vector-effect:non-scaling-stroke}.task.odd{fill-opacity:.72}
.task:hover{fill-opacity:.45}
.tables{columns:3 300px;column-gap:28px}.tables>div{break-inside:avoid}
table{border-collapse:collapse;width:100%;font-size:13px}
td{padding:2px 0;border-bottom:1px solid var(--line);vertical-align:top}td:last-child{text-align:right;overflow-wrap:anywhere;padding-left:14px;font-variant-numeric:tabular-nums}
#tip{position:fixed;z-index:9;pointer-events:none;white-space:pre;background:var(--text);color:var(--page);font-size:12px;line-height:1.45;
padding:6px 9px;border-radius:6px;display:none;max-width:90vw}
)css";

// Shows data-tip texts under the pointer and zooms timelines; the page is whole without it.
inline constexpr const char* kScript = R"js(
const tip=document.getElementById('tip');
document.addEventListener('mousemove',e=>{
 const t=e.target.closest&&e.target.closest('[data-tip]');
 tip.style.display=t?'block':'none';
 if(!t)return;
 tip.textContent=t.dataset.tip;
 const r=tip.getBoundingClientRect();
 tip.style.left=Math.max(4,Math.min(e.clientX+14,innerWidth-r.width-8))+'px';
 tip.style.top=(e.clientY+18+r.height>innerHeight?e.clientY-r.height-10:e.clientY+18)+'px';
});
document.querySelectorAll('.step').forEach(s=>{
 const c=s.querySelector('.canvas'),v=s.querySelector('.scroll');
 s.querySelector('input').addEventListener('input',e=>{
  const middle=(v.scrollLeft+v.clientWidth/2)/c.offsetWidth;
  c.style.setProperty('--zoom',e.target.value);
  v.scrollLeft=middle*c.offsetWidth-v.clientWidth/2;
 });
});
)js";

}  // namespace trainer::report
