# mysql-cluster: Group Replication with one primary.

own_state='SELECT MEMBER_STATE FROM performance_schema.replication_group_members WHERE MEMBER_ID = @@server_uuid'

group_programs() { :; }

group_options() {
  local seeds=() other
  for other in $(members); do seeds+=("$(member_address "$other"):33061"); done
  # Read-only until the group says otherwise: a member that starts again must not take writes before it has joined.
  options+=(--super-read-only=ON --gtid-mode=ON --enforce-gtid-consistency=ON
    --report-host="$(client_address "$member")" --report-port=3306
    --plugin-load-add=group_replication.so
    --group-replication-group-name=f8a5b4c2-3d1e-4e6f-9a70-5b1c2d3e4f50
    --group-replication-start-on-boot=OFF
    --group-replication-local-address="$(member_address "$member"):33061"
    --group-replication-group-seeds="$(IFS=,; echo "${seeds[*]}")"
    --group-replication-advertise-recovery-endpoints="$(member_address "$member"):3306"
    --group-replication-recovery-get-public-key=ON
    # A silent member is expelled after the 5 s in which it is suspected. As shipped it has 5 s more, and is looked at
    # every 15 s: a failover took 21 s.
    --group-replication-member-expel-timeout=0
    # Its clients stay connected when it gives up, which is harder for them than the offline mode of MySQL 9.
    --group-replication-exit-state-action=READ_ONLY
    # The smallest: as shipped each member may keep 1 GB of messages.
    --group-replication-message-cache-size=134217728)
}

group_return() { :; } # by itself

group_state() {
  sql "SELECT CONCAT(MEMBER_STATE, ' ', MEMBER_ROLE) FROM performance_schema.replication_group_members
    WHERE MEMBER_ID = @@server_uuid"
}

group_start() {
  for member in $(members); do at "$member"; alive || launch_member; done
  for member in $(members); do at "$member"; await_member; done
  group_lives || bootstrap_group
  local joining=()
  for member in $(members); do
    at "$member"
    join_group &
    joining+=($!)
  done
  for job in "${joining[@]}"; do wait "$job" || die "$kind has not become whole"; done
}

group_rejoin() {
  launch_member
  await_member
  join_group
}

group_promote() {
  find_mysql
  must_sql 'SELECT group_replication_set_as_primary(@@server_uuid)' >/dev/null
}

# True when a member sees a majority.
group_lives() {
  local member dir
  for member in $(members); do
    at "$member"
    [ "$(sql "SELECT ($own_state) = 'ONLINE' AND 2 * SUM(MEMBER_STATE = 'UNREACHABLE') < COUNT(*)
      FROM performance_schema.replication_group_members")" != 1 ] || return 0
  done
  return 1
}

# By the member that has executed, or received, what all the others have.
bootstrap_group() {
  local best=1 most='' own
  for member in $(members); do
    at "$member"
    # It waits for commits that wait for a majority: they can only fail.
    sql 'STOP GROUP_REPLICATION' || { kill_server "$kind $member"; launch_member; await_member; }
    own=$(must_sql "SELECT REPLACE(CONCAT_WS(',', @@GLOBAL.gtid_executed, (SELECT RECEIVED_TRANSACTION_SET FROM
      performance_schema.replication_connection_status WHERE CHANNEL_NAME = 'group_replication_applier')), '\n', '')")
    if [ "$(must_sql "SELECT GTID_SUBSET('$own', '$most')")" = 0 ]; then best=$member most=$own; fi
  done
  at "$best"
  must_sql "SET GLOBAL group_replication_bootstrap_group = ON"
  within=60 must_sql "START GROUP_REPLICATION USER = 'replication', PASSWORD = 'replication'"
  must_sql "SET GLOBAL group_replication_bootstrap_group = OFF"
}

# Looks again: one that was cut off may count itself as a member until the others tell it that they expelled it, and one
# that was killed is refused (3092) until the others have expelled its former process.
join_group() {
  local attempt
  for attempt in 1 2 3 4; do
    case $(sql "$own_state") in
      ONLINE | RECOVERING) ;;
      *) within=120 sql "STOP GROUP_REPLICATION; START GROUP_REPLICATION USER = 'replication', PASSWORD = 'replication'" || sleep 2 ;;
    esac
    ! await_sql 30 "$own_state" ONLINE || return 0
  done
  die "$kind $member has not joined the group; its log is $dir/log"
}
