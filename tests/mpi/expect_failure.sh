#!/bin/sh
# expect_failure.sh SECONDS TEXT COMMAND...: succeeds if the command fails within SECONDS and its output has TEXT.
seconds=$1
text=$2
shift 2
output=$(timeout "$seconds" "$@" 2>&1)
code=$?
echo "$output"
echo "exit code $code"
if [ $code -eq 0 ] || [ $code -eq 124 ]; then
  echo "the run should have failed within $seconds s"
  exit 1
fi
case $output in
  *"$text"*) exit 0 ;;
esac
echo "the output lacks: $text"
exit 1
