# The documented entrypoint of a runner on the lead, as a shell script would do it: the baseline of the bench.
# Called with the name of the cluster, its size and its tasks; the view is in $base/view already.
set -eEu -o pipefail
name=$1 size=$2 tasks=$3 base=/mnt/flux
view=$base/view config=$base/config
user=$(whoami)
uid=$(id -u "$user")

PATH=$PATH:$view/bin
python=$(find "$view/lib" -maxdepth 1 -name 'python3*' | head -n 1)
PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$python/site-packages
STATE_DIR=$config/var/lib/flux FLUX_OUTPUT_DIR=/mnt/fluxout
export PATH PYTHONPATH STATE_DIR FLUX_OUTPUT_DIR
hosts="$name-[0-$((size - 1))]"

mkdir -p "$config/etc/flux/config" "$config/etc/flux/system/cron.d" "$config/run/flux" "$STATE_DIR" "$config/curve" "$FLUX_OUTPUT_DIR"
echo "$hosts" >"$config/etc/flux/system/hostlist"
cat >"$config/etc/flux/config/broker.toml" <<END
[access]
allow-guest-user = true
allow-root-owner = true

[resource]
path = "$config/etc/flux/system/R"

[bootstrap]
curve_cert = "$config/curve/curve.cert"
default_port = 8050
default_bind = "tcp://eth0:%p"
default_connect = "tcp://%h.flux-service.default.svc.cluster.local:%p"
hosts = [ { host = "$hosts" } ]
END

cat >/mnt/flux-view.new <<END
export PATH=$PATH
export PYTHONPATH=$PYTHONPATH
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$view/lib
export fluxsocket=local://$config/run/flux/local
END
mv /mnt/flux-view.new "$base/flux-view.sh"
cat >/mnt/flux-connect.new <<END
. $base/flux-view.sh
flux proxy \$fluxsocket bash
END
mv /mnt/flux-connect.new "$base/flux-connect.sh"

cp /etc/flux-agent/curve/curve.cert "$config/curve/curve.cert"
chmod o-r "$config/curve/curve.cert"
chmod g-r "$config/curve/curve.cert"
chown -R "$uid" "$config/curve"

flux R encode --hosts="$hosts" --local >/mnt/R.new
mv /mnt/R.new "$config/etc/flux/system/R"
workdir=$(pwd)
echo "$name in $workdir"
ls "$workdir"

options="-Scron.directory=$config/etc/flux/system/cron.d -Stbon.fanout=256 -Srundir=$config/run/flux"
options="$options -Sstatedir=$STATE_DIR -Slocal-uri=local://$config/run/flux/local -Stbon.connect_timeout=5s"
options="$options -Slog-stderr-level=6 -Slog-stderr-mode=local"
if [ "$(hostname)" = "$name-0" ]; then
    # shellcheck disable=SC2086
    flux start -o --config "$config/etc/flux/config" $options flux submit -N "$size" -n "$tasks" --quiet --watch hostname
fi
touch "$base/flux-operator-complete.txt"
