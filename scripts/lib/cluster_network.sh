# The network of a cluster: each member is in a network namespace of its own, with two interfaces, and a hub namespace has
# the two switches (bridges) that they are plugged into.
#
#   clients   10.231.NUMBER.MEMBER, which the machine reaches: it is 10.231.NUMBER.254 itself
#   members   10.232.NUMBER.MEMBER, for what members say to each other
#
# An interface that is unplugged from its switch keeps its carrier and its address: packets vanish without an error, as on
# a broken line between two switches. The number is one that no other cluster of this machine has: /run/halfmq-clusters
# tells whose each is. `home` is the folder of the cluster.
claims=/run/halfmq-clusters

client_address() { echo "10.231.$(network).$1"; }
member_address() { echo "10.232.$(network).$1"; }
network() { cat "$home/network"; }
hub() { echo "halfmq-$(network)"; }
namespace() { echo "halfmq-$(network)-$1"; } # of a member

need_namespaces() {
  export PATH=$PATH:/usr/sbin:/sbin
  [ "$(id -u)" = 0 ] || die "$kind needs root: each of its members is in a network namespace of its own"
  command -v ip >/dev/null || install_packages iproute2
  local trial=halfmq-trial-$$
  { ip netns add $trial && ip -n $trial link add switch type bridge &&
    ip -n $trial link add here type veth peer name there; } >"$home/install.log" 2>&1 ||
    {
      cat "$home/install.log" >&2
      ip netns del $trial 2>/dev/null || true
      die "$kind needs network namespaces with bridges and veth: the capabilities NET_ADMIN and SYS_ADMIN"
    }
  ip netns del $trial
}

# A claim is over when the process that it is for has ended (HALFMQ_DB_OWNER, such as a run of tests), or when the
# cluster's folder or its network is gone.
is_left_over() { # file of a claim
  local folder owner since
  { read -r folder && read -r owner since; } <"$1" || return 0
  [ -d "$folder" ] && [ -e "/run/netns/halfmq-${1##*/}" ] || return 0
  [ "$owner" != - ] && [ "$(process "$owner" | cut -d' ' -f3)" != "$since" ]
}

# Takes a number and makes its network, unless the cluster has one that is up.
make_network() {
  lock 8 "$claims/lock"
  local claim
  for claim in "$claims"/[0-9]*; do
    if [ -e "$claim" ] && is_left_over "$claim"; then remove_network "${claim##*/}"; fi
  done
  local number owner='- -'
  [ -z "${HALFMQ_DB_OWNER:-}" ] || owner="$HALFMQ_DB_OWNER $(process "$HALFMQ_DB_OWNER" | cut -d' ' -f3)"
  number=$(cat "$home/network" 2>/dev/null) || number=0
  if ! { [ -e "$claims/$number" ] && [ "$(head -n 1 "$claims/$number")" = "$home" ]; }; then
    for number in $number {1..250}; do [ "$number" = 0 ] || [ -e "$claims/$number" ] || break; done
    [ ! -e "$claims/$number" ] || die "250 clusters have a network on this machine: $claims"
    remove_network "$number" # what was left without a claim
    echo "$number" >"$home/network"
    connect_members
    printf '%s\n%s\n' "$home" "$owner" >"$claims/$number"
  fi
  exec 8>&-
}

# Addresses of the link layer are written down: they are not asked for, or a connection to a member that is cut off would
# be refused after some seconds, when nobody answers. It hangs instead. (Replaced: clients of a former cluster may be
# asking already.)
link_address() { printf '02:e7:%02x:%02x:00:%02x' "$1" "$(network)" "$2"; } # 231 or 232, member

connect_members() {
  local member other side net
  ip netns add "$(hub)"
  for side in clients members; do
    ip -n "$(hub)" link add $side type bridge
    ip -n "$(hub)" link set $side up
  done
  ip link add "$(hub)" address "$(link_address 231 254)" type veth peer name outside netns "$(hub)"
  ip -n "$(hub)" link set outside master clients up
  ip address add "$(client_address 254)/24" dev "$(hub)"
  ip link set "$(hub)" up
  for member in $(members); do
    ip netns add "$(namespace "$member")"
    ip -n "$(namespace "$member")" link set lo up
    for side in clients members; do
      [ $side = clients ] && net=231 || net=232
      ip -n "$(namespace "$member")" link add $side address "$(link_address $net "$member")" \
        type veth peer name $side-"$member" netns "$(hub)"
      ip -n "$(namespace "$member")" address add "10.$net.$(network).$member/24" dev $side
      ip -n "$(namespace "$member")" link set $side up
      ip -n "$(hub)" link set $side-"$member" master $side up
    done
    ip neighbour replace "$(client_address "$member")" lladdr "$(link_address 231 "$member")" dev "$(hub)" nud permanent
    ip -n "$(namespace "$member")" neighbour replace "$(client_address 254)" lladdr "$(link_address 231 254)" dev clients \
      nud permanent
    for other in $(members); do
      [ "$other" = "$member" ] || ip -n "$(namespace "$member")" neighbour replace "$(member_address "$other")" \
        lladdr "$(link_address 232 "$other")" dev members nud permanent
    done
  done
}

unplug() { ip -n "$(hub)" link set "$2-$1" nomaster; } # member, clients or members
plug() { ip -n "$(hub)" link set "$2-$1" master "$2"; }
plugged() { ip -n "$(hub)" link show "$2-$1" | grep -q " master $2 "; }

# With whatever still runs in it: servers of a cluster that nobody stopped.
remove_network() { # number
  local space
  for space in $(ip netns list | cut -d' ' -f1 | grep -E "^halfmq-$1(-[0-9])?$"); do
    for ((tenths = 100; tenths > 0; tenths--)); do
      local left
      left=$(ip netns pids "$space")
      [ -n "$left" ] || break
      kill -KILL $left 2>/dev/null || true
      sleep 0.1
    done
    ip netns del "$space"
  done
  # The last of a namespace goes some time after its name.
  ip link del "halfmq-$1" 2>/dev/null || true
  rm -f "$claims/$1"
}
