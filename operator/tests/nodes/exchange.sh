# One task of a ring, one for each pod: every round, a number goes through all of them, and each adds 1.
#
#   exchange.sh NAME SIZE ROUNDS
name=$1 size=$2 rounds=$3
host=$(hostname)
index=${host##*-}
right=$name-$(((index + 1) % size)).flux-service
mkfifo /tmp/left /tmp/right /tmp/silent
exec 3<>/tmp/right 4<>/tmp/left
nc -l -p 7000 <>/tmp/silent >/tmp/left &      # it would hang up at the end of its input
until nc "$right" 7000 </tmp/right; do sleep 0.2; done &
for ((round = 1; round <= rounds; round++)); do
	if [ "$index" = 0 ]; then
		echo "$round" >&3
		read -r -t 60 -u 4 number || exit 1
		[ "$number" = $((round + size - 1)) ] || exit 2
	else
		read -r -t 60 -u 4 number || exit 1
		echo $((number + 1)) >&3
	fi
done
sleep 1      # until the last number has left
kill $(jobs -p) 2>/dev/null
[ "$index" != 0 ] || echo "$rounds rounds through $size pods"
