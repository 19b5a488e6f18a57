#!/usr/bin/env bash
# Training on several hosts, each of which is a network namespace of this machine with a link of a given rate:
#
#   tests/hosts.sh                      numbers of one device, a host that is cut off, time a step at some rates
#   tests/hosts.sh faults               hosts that are killed or do not belong together, and a network that fails
#   tests/hosts.sh torchrun             the same job started by torchrun (of KILN_CACHE's Python, if it has torch), and as
#                                       SCALE.md has it: a process is killed, torchrun starts all again, and they go on
#   tests/hosts.sh ray                  by Ray Train, in the same way (700 MB from PyPI)
#   tests/hosts.sh slurm                by SLURM, in the same way: one of this machine alone (root; Debian's packages). And
#                                       SCALE.md's array job, which embeds
#
# Not part of the test command: it needs root, ip and tc, and an otherwise idle machine for its times. It takes the
# release's binary where there is one, else the tests' (or the one that KILN_NATIVE names).
# HOSTS (2 3), RATES (100mbit 300mbit 1gbit) and STEPS (8) say what is measured. What takes several times as long as it may
# has failed: BOUND (90) seconds for all hosts to end after a fault, LONGEST (900) for a run.
set -euo pipefail
cd "$(dirname "$0")/.."

. tests/binary.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export KILN_SECRET="only for these tests" KILN_TIMEOUT=10 RAYON_NUM_THREADS=1

# A job whose gradients are most of its work: 5.3 million parameters, and few short texts.
cat > "$work/recipe.toml" <<'TOML'
name = "hosts"
seed = 1
[model]
max_length = 16
pooling = { mode = "mean" }
[model.new]
vocab_size = 2000
hidden_size = 256
intermediate_size = 1024
layers = 4
heads = 4
[[stage]]
name = "all"
data = ["data.jsonl"]
steps = 8
batch_size = 6
lr = 1e-4
TOML
for i in $(seq 1 40); do
  printf '{"query":"what is the number of item %d","pos":["item %d has the number %d"]}\n' "$i" "$i" "$((i * 37))"
done > "$work/data.jsonl"
steps=${STEPS:-8}
train=("$binary" train --device cpu --recipe "$work/recipe.toml" --set "stage.1.steps=$steps" --quiet)
bound=${BOUND:-90}
# Ends a run that hangs. In the foreground, so that it can be interrupted.
in_time() { timeout --foreground --kill-after=10 "${LONGEST:-900}" "$@"; }

# Steps enough for one process of two to be killed in the middle of them.
longer=("${train[@]}" --set stage.1.steps=60)
unbroken() {
  local rank
  for rank in 1 0; do
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29540 in_time "${longer[@]}" --output "$work/unbroken" > /dev/null &
  done
  wait -n && wait -n
}

if [ "${1:-}" = torchrun ]; then
  python=${KILN_PYTHON:-$HOME/.cache/kiln/venv/bin/python}
  if ! "$python" -c 'import torch.distributed.run' 2>/dev/null; then
    echo "skipped: $python has no torch"
    exit 0
  fi
  by_torchrun() { in_time "$python" -m torch.distributed.run --standalone --nproc-per-node 2 --no-python "$@" > /dev/null; }
  in_time "${train[@]}" --output "$work/one" > /dev/null
  by_torchrun "${train[@]}" --output "$work/two"
  "$python" tests/reference/hosts.py same "$work/one" "$work/two"
  by_torchrun "${longer[@]}" --output "$work/unbroken"
  "$python" tests/reference/launchers.py torchrun "$work" "${longer[@]}"
  "$python" tests/reference/hosts.py same "$work/unbroken" "$work/torchrun"
  exit 0
fi

case ${1:-} in
  ray)
    tests/setup.sh ray
    unbroken
    RAY_USAGE_STATS_ENABLED=0 "${KILN_CACHE:-$HOME/.cache/kiln}/ray/bin/python" tests/reference/launchers.py ray "$work" "${longer[@]}"
    python3 tests/reference/hosts.py same "$work/unbroken" "$work/ray"
    exit 0
    ;;
  slurm)
    tests/setup.sh slurm
    unbroken
    python3 tests/reference/launchers.py slurm "$work" "${longer[@]}"
    python3 tests/reference/hosts.py same "$work/unbroken" "$work/slurm"
    exit 0
    ;;
esac

if [ "$(id -u)" != 0 ] || ! command -v ip > /dev/null || ! command -v tc > /dev/null; then
  echo "skipped: network namespaces take root, ip and tc"
  exit 0
fi
tag=k$$
if ! ip netns add "$tag-0" 2>/dev/null; then
  echo "skipped: this system lets nobody make network namespaces"
  exit 0
fi
most=$(printf '%s\n' 3 ${HOSTS:-2 3} | sort -n | tail -1)
cleanup() {
  jobs -p | xargs -r kill 2>/dev/null || true
  for i in $(seq 0 $((most - 1))); do ip netns del "$tag-$i" 2>/dev/null || true; done
  ip link del "$tag" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

# One bridge, and a cable to each host.
ip link add "$tag" type bridge
ip link set "$tag" up
for i in $(seq 0 $((most - 1))); do
  [ "$i" = 0 ] || ip netns add "$tag-$i"
  ip link add "$tag-v$i" type veth peer name eth0 netns "$tag-$i"
  ip link set "$tag-v$i" master "$tag" up
  ip netns exec "$tag-$i" ip address add "10.77.0.$((i + 1))/24" dev eth0
  ip netns exec "$tag-$i" ip link set eth0 up
  ip netns exec "$tag-$i" ip link set lo up
done

rate() { # of what each host sends and what it gets
  for i in $(seq 0 $((most - 1))); do
    ip netns exec "$tag-$i" tc qdisc del dev eth0 root 2>/dev/null || true
    tc qdisc del dev "$tag-v$i" root 2>/dev/null || true
    if [ "$1" != none ]; then
      ip netns exec "$tag-$i" tc qdisc add dev eth0 root tbf rate "$1" burst 512kb latency 200ms
      tc qdisc add dev "$tag-v$i" root tbf rate "$1" burst 512kb latency 200ms
    fi
  done
}

odd=() # what rank 1 alone has in its environment
host() { # HOST OUTPUT ARGUMENTS...: one process on one host
  local i=$1 output=$2
  shift 2
  local other=()
  [ "$i" != 1 ] || other=("${odd[@]}")
  in_time ip netns exec "$tag-$i" env RANK="$i" WORLD_SIZE="$world" LOCAL_RANK=0 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 "${other[@]}" \
    "${train[@]}" --output "$output" "$@" > "$work/out-$i" 2>&1
}

job() { # OUTPUT ARGUMENTS...: all hosts
  local pids=() output=$1
  shift
  for i in $(seq 1 $((world - 1))); do
    host "$i" "$work/none" "$@" &
    pids+=($!)
  done
  host 0 "$output" "$@" || { cat "$work"/out-*; return 1; }
  for pid in "${pids[@]}"; do wait "$pid" || { cat "$work"/out-*; return 1; }; done
}

# Starts all hosts for what would never end; PIDS are theirs.
begin() { # OUTPUT ARGUMENTS...
  local output=$1 i
  shift
  pids=()
  rm -f "$work"/out-*
  for i in $(seq 0 $((world - 1))); do
    [ "$i" = 0 ] || output=$work/none
    host "$i" "$output" --set stage.1.steps=100000 "$@" &
    pids+=($!)
  done
}

trains() { # OUTPUT: until it has taken a step
  until [ -s "$1/metrics.jsonl" ]; do
    kill -0 "${pids[0]}" || { cat "$work/out-0"; return 1; }
    sleep 0.1
  done
}

soon() { # WHAT: fails where more time has gone than any fault takes
  [ "$SECONDS" -le "$bound" ] || {
    echo "$1 after $SECONDS s; more than $bound are a hang (KILN_TIMEOUT=$KILN_TIMEOUT)" >&2
    return 1
  }
}

# All but a host that was killed end with an error, in one line that has these words, and soon.
ended() { # WORDS [KILLED]
  local i
  SECONDS=0
  for i in $(seq 0 $((world - 1))); do
    if wait "${pids[$i]}"; then
      echo "host $i ended as if all were well" >&2
      return 1
    fi
    [ "$i" != "${2:-none}" ] || continue
    [ "$(grep -c '^error: ' "$work/out-$i")" = 1 ] && grep '^error: ' "$work/out-$i" | grep -q "$1" || {
      cat "$work/out-$i" >&2
      return 1
    }
  done
  soon "$world hosts ended"
  echo "$world hosts, after at most $SECONDS s: $(grep -h '^error: ' "$work"/out-* | sort | uniq -c | sed 's/^ *//')"
}

faults() {
  local victim harm words between proxy=$PWD/target/quick/examples/proxy
  cargo build --quiet --profile quick -p kiln-hosts --example proxy
  rate none
  for world in ${HOSTS:-2 3}; do
    for victim in $(seq 0 $((world - 1))); do
      echo "== $world hosts, and the process on host $victim is killed"
      begin "$work/killed-$world-$victim"
      trains "$work/killed-$world-$victim"
      ip netns pids "$tag-$victim" | xargs kill -9
      ended "rank $victim (.*is lost" "$victim"
    done
    # What rank 0 sends to rank 1 around the ring passes by a proxy on the host of rank 1, which harms the third step's.
    for harm in delay damage cut stall; do
      echo "== $world hosts, and a network with $harm"
      ip netns exec "$tag-1" "$proxy" 10.77.0.2:7002 10.77.0.2:7001 "$harm" 50000000 > /dev/null &
      between=$!
      odd=(KILN_BIND=10.77.0.2:7001 KILN_ADVERTISE=10.77.0.2:7002)
      case $harm in
        delay)
          job "$work/delayed-$world"
          python3 tests/reference/hosts.py same "$work/one" "$work/delayed-$world"
          ;;
        damage) words='rank 1 (.*got a frame whose checksum is wrong from rank 0 (' ;;
        cut) words='is lost: a connection closed' ;;
        stall) words='no data of rank 0 (.*have reached rank 1 (' ;;
      esac
      if [ "$harm" != delay ]; then
        begin "$work/$harm-$world"
        ended "$words"
      fi
      odd=()
      # The next one takes its address.
      kill "$between"
      wait "$between" || true
    done
  done
  world=2
  echo '== another secret'
  odd=(KILN_SECRET='not the same secret')
  KILN_JOIN_TIMEOUT=5 begin "$work/secret"
  ended 'another secret than this host\|another KILN_SECRET'
  odd=()
  echo '== another recipe'
  pids=()
  rm -f "$work"/out-*
  host 0 "$work/recipe" & pids+=($!)
  host 1 "$work/none" --set stage.1.lr=1e-3 & pids+=($!)
  ended 'trains by another recipe than rank 0'
  echo '== strangers at the door, one of which speaks another version'
  rm -f "$work"/out-*
  # Without --quiet, so that rank 0 says whom it refuses.
  local quiet=("${train[@]}")
  train=("${train[@]:0:${#train[@]}-1}")
  host 0 "$work/scanned" & pids=($!)
  train=("${quiet[@]}")
  for garbage in 'GET / HTTP/1.0\r\n\r\n' '\0' 'KILNHOST\x63\0aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'; do
    # It stays for an answer. Rank 0 may not listen yet.
    SECONDS=0
    until ip netns exec "$tag-1" bash -c "exec 3<>/dev/tcp/10.77.0.1/29500 && {
      printf '$garbage' >&3
      timeout 2 cat <&3 > /dev/null || true
    }" 2>/dev/null; do
      soon 'rank 0 does not listen'
      sleep 0.1
    done
  done
  SECONDS=0
  until grep -q 'refused 10\.77\.0\.2 speaks version 99' "$work/out-0"; do
    kill -0 "${pids[0]}" && soon 'rank 0 has not refused what speaks another version' || { cat "$work/out-0" >&2; return 1; }
    sleep 0.1
  done
  grep -m 1 'refused' "$work/out-0"
  SECONDS=0
  host 1 "$work/none" & pids+=($!)
  wait "${pids[0]}"
  wait "${pids[1]}"
  soon 'what strangers have called ended'
  python3 tests/reference/hosts.py same "$work/one" "$work/scanned"
}

echo '== the numbers of one device'
in_time "${train[@]}" --output "$work/one" > /dev/null
for world in ${HOSTS:-2 3}; do
  rate none
  job "$work/of-$world"
  python3 tests/reference/hosts.py same "$work/one" "$work/of-$world"
done

if [ "${1:-}" = faults ]; then
  faults
  exit 0
fi

echo '== a host whose cable is pulled'
world=3
host 1 "$work/none" --set stage.1.steps=100000 & first=$!
host 2 "$work/none" --set stage.1.steps=100000 & second=$!
host 0 "$work/pulled" --set stage.1.steps=100000 & main=$!
until [ -s "$work/pulled/metrics.jsonl" ]; do
  kill -0 "$main" || { cat "$work/out-0"; exit 1; }
  sleep 0.1
done
sleep 1
ip link set "$tag-v2" down
SECONDS=0
wait "$main" && exit 1
wait "$first" && exit 1
soon 'the others stopped'
echo "the others stopped after $SECONDS s (KILN_TIMEOUT=$KILN_TIMEOUT):"
grep -h '^error: ' "$work/out-0" "$work/out-1"
grep -q '^error: rank 2 ' "$work/out-0"
grep -q '^error: rank 2 ' "$work/out-1"
wait "$second" && exit 1
soon 'what was cut off stopped'
echo "and what was cut off:"
grep -h '^error: ' "$work/out-2"
ip link set "$tag-v2" up

echo '== seconds a step'
for world in ${HOSTS:-2 3}; do
  for speed in none ${RATES:-100mbit 300mbit 1gbit}; do
    for format in f32 bf16; do
      rate "$speed"
      job "$work/rate-$world-$speed-$format" --set "compute.gradients='$format'"
    done
  done
done
python3 tests/reference/hosts.py rates "$work" 4
