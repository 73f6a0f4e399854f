#!/usr/bin/env bash
# Runs a program under mpirun as on several machines joined by slow links.
#
#   tools/slow_link.sh [--ranks N] [--rate RATE] -- PROGRAM [ARGUMENT...]
#
#   --ranks N      ranks, each on a machine of its own (default 2)
#   --rate RATE    of each machine's link, in each direction, as tc writes it: 1gbit, 100mbit (default 1gbit)
#
# A machine is a network namespace with a host name of its own; a bridge joins them. All are gone at the end.
# The machines share this one's cores out among them. Needs root and iproute2.
#
# Exit code: the program's; 77 when this machine does not allow it, with the reason; 2 for wrong arguments.
set -euo pipefail

# mpirun starts the other machines' daemons through this: agent ADDRESS COMMAND...
if [[ ${0##*/} == slow-link-agent ]]; then
  machine=$((${1##*.} - 1))
  shift
  exec ip netns exec "${SLOW_LINK_RUN}n$machine" unshare --uts bash -c "hostname ${SLOW_LINK_RUN}m$machine; $*"
fi
# And each rank through this. A machine's own view has no other ranks, so Open MPI would bind all to one core.
if [[ ${0##*/} == slow-link-rank ]]; then
  IFS=, read -ra cores <<<"$SLOW_LINK_CORES"
  rank=$OMPI_COMM_WORLD_RANK ranks=$OMPI_COMM_WORLD_SIZE count=${#cores[@]}
  if ((ranks >= count)); then
    own=${cores[rank % count]}
  else
    first=$((rank * count / ranks)) end=$(((rank + 1) * count / ranks))
    own=$(IFS=,; echo "${cores[*]:first:end-first}")
  fi
  exec taskset -c "$own" "$@"
fi

usage() {
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
cannot() {
  echo "slow_link: not possible here: $1" >&2
  exit 77
}

ranks=2 rate=1gbit
while (($# > 0)); do
  case "$1" in
    --ranks) ranks=${2:-} && shift 2 || usage ;;
    --rate) rate=${2:-} && shift 2 || usage ;;
    --) shift && break ;;
    *) usage ;;
  esac
done
[[ $ranks =~ ^[1-9][0-9]?$ && $rate =~ ^[1-9][0-9]*[kmg]?bit$ ]] && (($# > 0)) || usage

((EUID == 0)) || cannot "making network namespaces needs root"
PATH=$PATH:/usr/sbin:/sbin
for tool in ip tc unshare hostname taskset mpirun; do
  command -v "$tool" >/dev/null || cannot "there is no '$tool' (tools/install_packages.sh installs what is needed)"
done

run=sl$$ # interface names have at most 15 characters
work=$(mktemp -d "/tmp/$run.XXXXXX")
launcher=
clean_up() {
  trap '' INT TERM HUP
  if [[ -n $launcher ]] && kill -TERM "$launcher" 2>/dev/null; then
    for ((i = 0; i < 100; ++i)); do
      kill -0 "$launcher" 2>/dev/null || break
      sleep 0.1
    done
  fi
  local n left
  for ((n = 0; n < ranks; ++n)); do
    left=$(ip netns pids "${run}n$n" 2>/dev/null || true)
    [[ -z $left ]] || kill -KILL $left 2>/dev/null || true
    ip netns del "${run}n$n" 2>/dev/null || true
    ip link del "${run}v$n" 2>/dev/null || true # gone with the namespace, if it got there
  done
  ip link del "${run}b" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

try() { "$@" 2>"$work/error" || cannot "'$*' failed: $(tail -n 1 "$work/error")"; }

# A burst of 16 kB bounds small messages too. Packets above it would be cut into many by tbf, which costs so much
# that a fast link would not reach its rate. The limit stands at both ends of a link, for what a machine sends and for
# what it receives.
limit() { try "$@" root tbf rate "$rate" burst 16kb latency 50ms; }
largest_packet=15000

try ip link add "${run}b" type bridge
try ip link set "${run}b" up
for ((n = 0; n < ranks; ++n)); do
  try ip netns add "${run}n$n"
  try ip link add "${run}v$n" type veth peer name eth0 netns "${run}n$n"
  try ip link set "${run}v$n" master "${run}b" gso_max_size "$largest_packet" up
  try ip -n "${run}n$n" addr add "10.77.0.$((n + 1))/24" dev eth0
  try ip -n "${run}n$n" link set eth0 gso_max_size "$largest_packet" up
  try ip -n "${run}n$n" link set lo up
  limit tc -n "${run}n$n" qdisc add dev eth0
  limit tc qdisc add dev "${run}v$n"
  echo "10.77.0.$((n + 1)) slots=1" >>"$work/hosts"
done

self=$(readlink -f "$0")
ln -s "$self" "$work/slow-link-agent"
ln -s "$self" "$work/slow-link-rank"
cores=()
IFS=, read -ra ranges <<<"$(taskset -cp $$ | sed 's/.*: //')"
for range in "${ranges[@]}"; do
  for ((core = ${range%-*}; core <= ${range#*-}; ++core)); do cores+=("$core"); done
done
export SLOW_LINK_RUN=$run SLOW_LINK_CORES
SLOW_LINK_CORES=$(IFS=,; echo "${cores[*]}")
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# btl_tcp_flags 1: send only. The put protocol was seen to halve the rate when both ends of a connection send.
ip netns exec "${run}n0" unshare --uts bash -c 'hostname "$1"; shift; exec "$@"' _ "${run}m0" \
  mpirun -n "$ranks" --hostfile "$work/hosts" --map-by node --bind-to none \
  --mca plm rsh --mca plm_rsh_agent "$work/slow-link-agent" --mca orte_tmpdir_base "$work" \
  --mca pml ob1 --mca btl tcp,self --mca btl_tcp_flags "${OMPI_MCA_btl_tcp_flags:-1}" \
  --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \
  "$work/slow-link-rank" "$@" <&0 &
launcher=$!
status=0
wait "$launcher" || status=$?
launcher=
exit "$status"
