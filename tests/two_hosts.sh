# Runs a script under torchrun on two hosts: two network namespaces with a cable between them.
# Start it in `unshare --user --map-root-user --net`. Arguments: the Python, then the script and what it takes.
set -e
ip link set lo up
unshare --net sleep 600 &
far=$!
trap 'kill $far' EXIT
while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
ip link add left type veth peer name right netns $far
ip addr add 10.9.0.1/24 dev left
ip link set left up
nsenter --target $far --net sh -c 'ip link set lo up; ip addr add 10.9.0.2/24 dev right; ip link set right up'

python=$1
shift
launch="$python -m torch.distributed.run --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=10.9.0.1:29400"
# both have one name, by which torchrun tells who listens and gloo where, so that is said
GLOO_SOCKET_IFNAME=right nsenter --target $far --net $launch --rdzv-conf=is_host=0 --local-addr=10.9.0.2 "$@" &
second=$!
GLOO_SOCKET_IFNAME=left $launch --rdzv-conf=is_host=1 --local-addr=10.9.0.1 "$@"
wait $second
