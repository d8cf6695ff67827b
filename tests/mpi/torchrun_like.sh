#!/bin/bash
# torchrun_like.sh N COMMAND...: starts N processes with the variables that torchrun sets; when one fails, ends the others.
ranks=$1
shift
export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000))
processes=()
for ((rank = 0; rank < ranks; ++rank)); do
  RANK=$rank LOCAL_RANK=$rank "$@" &
  processes+=($!)
done
code=0
for ((rank = 0; rank < ranks; ++rank)); do
  wait -n || { code=$?; kill "${processes[@]}" 2>/dev/null; break; }
done
wait
exit $code
