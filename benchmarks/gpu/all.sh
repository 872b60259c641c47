#!/usr/bin/env bash
# Every measurement on a GPU, those first that others build on. On an H200 about 25 minutes, 9 of them two builds.
# A step that fails does not stop the rest. Results go to $OUT, else to benchmarks/results; logs to LOGS.
#
# usage: benchmarks/gpu/all.sh PROBES.jsonl REFERENCE.npy ENGINES LOGS [PEER.py]
#   REFERENCE.npy is what benchmarks/gpu/reference.py made of PROBES.jsonl. PEER.py prints the peer's tokens/s; it is
#   run with $PEER_PYTHON and an argument, smol or l8b. $PY is this project's Python, $NCU Nsight Compute.
set -u
cd "$(dirname "$0")/../.."
probes=$1 reference=$2 engines=$3 logs=$4 peer=${5:-}
PY=${PY:-python} NCU=${NCU:-ncu}
mkdir -p "$engines" "$logs"

step() {  # NAME SECONDS COMMAND...
  local name=$1 limit=$2 started=$SECONDS code
  shift 2
  timeout "$limit" "$@" > "$logs/$name.log" 2>&1
  code=$?
  echo "$name: exit $code after $((SECONDS - started)) s; $(tail -n 1 "$logs/$name.log" | cut -c1-200)"
}
measure() {  # NAME SECONDS MODULE ARGUMENTS...
  local name=$1 limit=$2 module=$3
  shift 3
  step "$name" "$limit" "$PY" -m "benchmarks.gpu.$module" "$@"
}
speed() {  # MODEL, AND THE PEER'S WORD FOR IT
  local log=()
  if [ -n "$peer" ]; then
    # The peer has libraries of its own.
    step "peer_$2" 200 env -u LD_LIBRARY_PATH -u PYTHONPATH -u PYTHONHOME "${PEER_PYTHON:-python3}" "$peer" "$2"
    log=(--peer-log "$logs/peer_$2.log")
  fi
  measure "speed_$1" 150 speed --engines "$engines" --model "$1" ${log[@]+"${log[@]}"}
}
kernels() {  # MODEL
  # Nsight Compute has a Python of its own.
  step "ncu_$1" 200 env -u LD_LIBRARY_PATH -u PYTHONPATH -u PYTHONHOME "$NCU" --profile-from-start off \
    --clock-control none --metrics gpu__time_duration.sum --csv --page raw --log-file "$logs/$1.csv" \
    env ${LD_LIBRARY_PATH:+LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} ${PYTHONPATH:+PYTHONPATH="$PYTHONPATH"} \
    ${PYTHONHOME:+PYTHONHOME="$PYTHONHOME"} \
    "$PY" -m benchmarks.gpu.kernels --engines "$engines" --model "$1" --mix "128 x 128"
  measure "kernels_$1" 60 kernels --read "$logs/$1.csv" --model "$1" --mix "128 x 128"
}

measure build_smollm2 400 speed --engines "$engines" --build-only
kernels smollm2
measure parity 120 parity "$probes" --reference "$reference" --engines "$engines"
measure determinism 120 determinism "$probes" --engines "$engines"
measure dagster_run 150 dagster_run "$probes" --engines "$engines" --reference "$reference"
speed smollm2 smol
measure zoo 400 zoo --processes 10
measure architectures 300 architectures --processes 10
measure allocations 400 allocations --engines "$engines"
measure build_width4096 600 speed --engines "$engines" --model width4096 --build-only
kernels width4096
speed width4096 l8b
step tests 500 "$PY" -m pytest -m gpu tests/gpu -q -p no:cacheprovider
