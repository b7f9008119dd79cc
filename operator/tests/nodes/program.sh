# One task of a program that gives an account of itself (test_support::history):
#
#   program.sh POD NAME FIRST LATER CODE
#
# POD is the lead's. It runs FIRST seconds the first time that the program of MiniCluster NAME starts, LATER seconds
# afterwards, and ends with CODE.
account=/account/$2
who="pod=$1 host=$(hostname) rank=$FLUX_TASK_RANK"
note() { echo "$EPOCHREALTIME $1 $who" >>"$account"; }
trap 'note TERM; exit 143' TERM HUP
seconds=$3
! grep -qv " pod=$1 " "$account" 2>/dev/null || seconds=$4
note START
for ((second = 0; second < seconds; second++)); do
	sleep 1 &
	wait $!
	note tick
done
note END
exit "$5"
