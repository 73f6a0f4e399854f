"""The rows of a comparison as a table in Markdown and as a picture in SVG. See cpu.sh."""

import html

COLUMNS = [  # title, alignment, text of a row
    ("model", "---", lambda r: r["model"]),
    ("precision", "---", lambda r: r["precision"]),
    ("sequence", "---:", lambda r: str(r["sequence"])),
    ("peer", "---", lambda r: r["peer"]),
    ("peer, tokens/s", "---:", lambda r: f"{r['tokens_per_second']:.1f}"),
    ("ours, tokens/s", "---:", lambda r: f"{r['ours_tokens_per_second']:.1f}"),
    ("ratio", "---:", lambda r: f"{r['ratio']:.2f}"),
    ("peer, peak GiB", "---:", lambda r: gib(r["peak_memory_bytes"])),
    ("ours, peak GiB", "---:", lambda r: gib(r["ours_peak_memory_bytes"])),
    ("peer, GiB beyond state", "---:", lambda r: gib(r.get("memory_beyond_state_bytes"))),
    ("ours, GiB beyond state", "---:", lambda r: gib(r.get("ours_memory_beyond_state_bytes"))),
    ("ours / peer", "---:", lambda r: number(r.get("memory_beyond_state_ratio"))),
    ("ours / roofline", "---:", lambda r: number(r.get("ours_roofline_ratio"))),
]


def gib(count):
    return "" if count is None else f"{count / 2**30:.2f}"


def number(value):
    return "" if value is None else f"{value:.2f}"


def table(rows):
    lines = [[title for title, _, _ in COLUMNS], [alignment for _, alignment, _ in COLUMNS]]
    lines += [[text(r) for _, _, text in COLUMNS] for r in rows]
    lines = ["| " + " | ".join(line) + " |" for line in lines]
    lines[1] = lines[1].replace(" ", "")
    return "\n".join(lines) + "\n"


# Of text: as far from white as from black. Of bars: ours, then the peers in the order in which they appear.
TEXT, OURS, PEERS = "#767676", "#1f7ad1", ["#b5651d", "#8a63b8", "#2f8f5b", "#a8526b", "#7d7d7d"]
WIDTH, NAMES, VALUES, BAR, GAP, HEADING = 960, 230, 215, 20, 5, 34


def picture(rows, title):
    """Grouped horizontal bars of tokens/s: ours and each peer, a group for each model, precision and sequence."""
    groups, colors = {}, {}
    for r in rows:
        groups.setdefault((r["model"], r["precision"], r["sequence"]), []).append(r)
        colors.setdefault(r["peer"], PEERS[len(colors) % len(PEERS)])
    most = max(max(r["tokens_per_second"], r["ours_tokens_per_second"]) for r in rows)
    scale = (WIDTH - NAMES - VALUES) / most
    body, y = [], 0

    def text(x, y, content, more=""):
        body.append(f'<text x="{x}" y="{y}"{more}>{html.escape(content)}</text>')

    def bar(name, rate, color, note):
        nonlocal y
        text(NAMES - 8, y + BAR - 5, name, ' text-anchor="end"')
        body.append(f'<rect x="{NAMES}" y="{y}" width="{max(1, rate * scale):.1f}" height="{BAR}" rx="2" fill="{color}"/>')
        text(f"{NAMES + rate * scale + 8:.1f}", y + BAR - 5, f"{rate:.1f}{note}")
        y += BAR + GAP

    y += 28
    text(8, y, title, ' font-size="17" font-weight="600"')
    for (model, precision, sequence), of in groups.items():
        y += HEADING
        text(8, y, f"{model}, {precision}, sequence {sequence}", ' font-weight="600"')
        y += 10
        bar("ours", of[0]["ours_tokens_per_second"], OURS, "")
        for r in of:
            bar(r["peer"], r["tokens_per_second"], colors[r["peer"]], f" (ours {r['ratio']:.2f} times)")
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 14}" width="{WIDTH}" height="{y + 14}" '
            f'font-family="system-ui, sans-serif" font-size="15" fill="{TEXT}" role="img" '
            f'aria-label="{html.escape(title)}">')
    return "\n".join([head, f"<title>{html.escape(title)}</title>", *body, "</svg>"]) + "\n"
