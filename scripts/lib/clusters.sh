# Clusters of databases: the sub-commands of scripts/db on kinds of several members. Sourced by scripts/db. `home` is the
# folder of the cluster, `dir` that of the member in hand, `member` its number.
#
# What differs between the kinds is in group_replication.sh, galera.sh and pairs.sh. With `flavour` for group, galera or
# pair, each defines
#
#   FLAVOUR_programs  installs what it needs beside the servers
#   FLAVOUR_options   adds to the options of a member's server
#   FLAVOUR_start     starts the members that do not run, and makes one cluster of all
#   FLAVOUR_rejoin    starts the member in hand, and has it join the others
#   FLAVOUR_return    has the member in hand go on after it was frozen or isolated
#   FLAVOUR_promote   makes the member in hand the writable one; not of galera
#   FLAVOUR_state     prints what the member in hand takes itself for
. scripts/lib/cluster_network.sh
. scripts/lib/group_replication.sh
. scripts/lib/galera.sh
. scripts/lib/pairs.sh

clustered() { [[ $kind = *-cluster || $kind = *-pair ]]; }
members() { [[ $kind = *-pair ]] && echo 1 2 || echo 1 2 3; }
at() { member=$1 dir=$home/$1; }

choose_cluster() {
  home=$root/$kind
  dir=$home
  case $kind in
    mysql-cluster) flavour=group ;;
    mariadb-cluster) flavour=galera ;;
    *) flavour=pair ;;
  esac
  user=()
  [ "$(id -u)" != 0 ] || user=(--user=root)
}

choose_member() { # number
  [[ " $(members) " = *" $1 "* ]] || die "$kind has the members $(members)"
  at "$1"
}

cluster_url() {
  local hosts=()
  for member in $(members); do hosts+=("$(client_address "$member"):3306"); done
  (IFS=,; echo "mysql+pymysql://halfmq:halfmq@${hosts[*]}/halfmq")
}

# --- one member -----------------------------------------------------------------------------------------------------

# By the member's socket, which no partition concerns.
sql() { # statements
  local client=(mariadb)
  if [ "$family" = mysql ]; then
    client=(mysql)
    [ ${#server[@]} = 1 ] || client=("${server[@]:0:3}" "$cache/mysql-root/usr/bin/mysql")
  fi
  (cd "$dir/data" && timeout "${within:-30}" "${client[@]}" --no-defaults --user=root --socket=server.sock --batch --raw \
    --skip-column-names --execute="$1" 2>"$dir/sql.log" 8>&- 9>&-)
}

must_sql() { sql "$1" || { cat "$dir/sql.log" >&2; die "$kind $member refused: $1"; }; }

await_answer() { # seconds
  for ((tenths = $1 * 10; tenths > 0; tenths--)); do
    alive || return 1
    within=5 sql "SHOW VARIABLES LIKE 'port'" >/dev/null && return 0
    sleep 0.1
  done
  return 1
}

await_member() { await_answer 120 || did_not_start "$kind $member"; }

# Waits for an answer of a statement.
await_sql() { # seconds, statement, answer
  for ((tenths = $1 * 5; tenths > 0; tenths--)); do
    alive || return 1
    [ "$(within=5 sql "$2" || true)" != "$3" ] || return 0
    sleep 0.2
  done
  return 1
}

launch_member() { # further options
  local options=()
  server_options 128M
  options+=(--server-id="$(cat "$dir/server_id" 2>/dev/null || echo "$member")")
  [ "$family" = mariadb ] || options+=(--innodb-log-buffer-size=16M --performance-schema-digests-size=200
    --performance-schema-events-statements-history-long-size=100) # 150 MB less
  "${flavour}_options"
  options+=("$@" ${HALFMQ_DB_OPTIONS:-})
  launch_server nsenter --net="/run/netns/$(namespace "$member")"
}

# All members begin as copies of one data directory, with the users in it; the first member is the last to get its own.
make_data() {
  [ ! -d "$home/1/data" ] || return 0
  dir=$home
  rm -rf "$dir/data"
  cat >"$dir/users.sql" <<'SQL'
FLUSH PRIVILEGES;
CREATE USER 'halfmq'@'%' IDENTIFIED BY 'halfmq';
GRANT ALL PRIVILEGES ON *.* TO 'halfmq'@'%' WITH GRANT OPTION;
CREATE USER 'replication'@'%' IDENTIFIED BY 'replication';
GRANT ALL PRIVILEGES ON *.* TO 'replication'@'%';
CREATE DATABASE halfmq;
SQL
  # It would let clients write to a server that is read_only; there is no super_read_only in MariaDB 10.11.
  [ "$kind" != mariadb-pair ] || echo "REVOKE READ ONLY ADMIN ON *.* FROM 'halfmq'@'%';" >>"$dir/users.sql"
  initialise users.sql
  rm -f "$dir/data/auto.cnf" # the identity of a MySQL server
  for member in $(members | tac -s ' '); do
    mkdir -p "$home/$member"
    give_first_data
  done
  [ "$kind" = mysql-pair ] || rm -rf "$dir/data"
}

# To the member in hand. Only a pair of MySQL needs it again later.
give_first_data() {
  rm -rf "$home/$member"/data{,.new}
  cp -r "$home/data" "$home/$member/data.new"
  mv "$home/$member/data.new" "$home/$member/data"
}

# --- sub-commands ---------------------------------------------------------------------------------------------------

prepare_cluster() {
  mkdir -p "$home"
  lock 9 "$home/lock"
  need_namespaces
  "find_$family"
  [ "$family" = mariadb ] || [ ${#server[@]} = 1 ] || need_mysql_clients
  "${flavour}_programs"
  make_network
  make_data
}

start_cluster() {
  prepare_cluster
  "${flavour}_start"
  cluster_url
}

start_member() {
  prepare_cluster
  at "$1"
  alive || "${flavour}_rejoin"
  cluster_url
}

any_alive() {
  local member dir
  for member in $(members); do at "$member"; ! alive || return 0; done
  return 1
}

kill_cluster() { # a number, or nothing for all that run
  for member in ${1:-$(members)}; do
    at "$member"
    [ -z "${1:-}" ] && ! alive || kill_server "$kind $member"
  done
}

signal_member() { alive || die "$kind $member is not running"; kill "-$1" "$(pid)"; }

stop_cluster() { # a number, or nothing for all
  [ -d "$home" ] || return 0
  lock 9 "$home/lock"
  local numbers=${1:-$(members)}
  for member in $numbers; do
    at "$member"
    if alive; then kill -TERM "$(pid)"; kill -CONT "$(pid)"; fi
  done
  for member in $numbers; do
    at "$member"
    # A server may wait for its commits, and these for members that it has lost.
    await_exit 20 || { say "$kind $member does not end: SIGKILL"; kill_server "$kind $member"; }
  done
  [ -n "${1:-}" ] || [ ! -e "$home/network" ] || remove_cluster_network
}

discard_cluster() {
  [ -d "$home" ] || return 0
  kill_cluster
  stop_cluster
  rm -rf "$home"
}

remove_cluster_network() {
  lock 8 "$claims/lock"
  if [ "$(head -n 1 "$claims/$(network)" 2>/dev/null)" = "$home" ]; then remove_network "$(network)"; fi
}

isolate_member() { # `all`, for clients too
  [[ $1 = @(|all) ]] || usage
  unplug "$member" members
  [ "$1" != all ] || unplug "$member" clients
}

heal_member() {
  plug "$member" members
  plug "$member" clients
}

cluster_status() {
  any_alive || { echo "$kind stopped"; return; }
  echo "$kind $(cluster_url)"
  "find_$family"
  for member in $(members); do
    at "$member"
    if alive; then
      echo "$kind $member running, process $(pid), $(within=3 "${flavour}_state" || echo 'does not answer')"
    else
      echo "$kind $member stopped"
    fi
  done
}

act_on_cluster() { # sub-command, number of a member, all
  local number=${2:-}
  [ -z "$number" ] || choose_member "$number"
  case $1 in
    start) if [ -n "$number" ]; then start_member "$number"; else start_cluster; fi; return ;;
    stop) stop_cluster "$number"; return ;;
    discard) discard_cluster; return ;;
    status) cluster_status; return ;;
  esac
  any_alive || die "$kind is not running: scripts/db start $kind"
  case $1 in
    url) cluster_url ;;
    kill) kill_cluster "$number" ;;
    freeze | thaw | isolate | heal | promote) [ -n "$number" ] || usage ;;&
    freeze) signal_member STOP ;;
    thaw) signal_member CONT; "${flavour}_return" ;;
    isolate) isolate_member "${3:-}" ;;
    heal) heal_member; "${flavour}_return" ;;
    promote) [ $flavour != galera ] || die "all members of $kind are writable"; "${flavour}_promote" ;;
    *) usage ;;
  esac
}
