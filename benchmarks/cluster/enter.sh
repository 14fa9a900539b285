#!/bin/sh
# Starts a command on a member of the cluster $EMULATED_CLUSTER, whose control groups are
# in each of the folders $EMULATED_GROUPS:
#
#     enter.sh switch COMMAND ARGUMENT...
#     enter.sh [-OPTION...] ADDRESS COMMAND_LINE     as mpiexec calls ssh
set -eu
while [ "${1#-}" != "$1" ]; do shift; done
case $1 in
  switch) member=$EMULATED_CLUSTER-switch ;;
  *) member=$EMULATED_CLUSTER-$((${1##*.} - 1)) ;;
esac
shift
for parent in $EMULATED_GROUPS; do
  echo $$ > "$parent/$member/cgroup.procs"
done
case $member in
  # With this machine's /sys, where the control groups are that the line above needs.
  *-switch) exec nsenter "--net=/run/netns/$member" "$@" ;;
  # With a /sys of its own, where MPI finds the host's links; there, too, with this
  # machine's control groups, which limit the host; and with a name and shared memory
  # of its own, by which programs tell hosts apart.
  *)
    groups=/run/emulated-groups
    mkdir -p "$groups"
    exec unshare --uts --ipc --mount /bin/sh -c \
      'hostname "$1"; mount --rbind /sys/fs/cgroup "$2"; shift 2; exec "$@"' enter \
      "host${member##*-}" "$groups" ip netns exec "$member" /bin/sh -c \
      "mount --rbind $groups /sys/fs/cgroup; $*"
    ;;
esac
