# mysql-pair and mariadb-pair: a source and a replica, with semi-synchronous replication. A commit waits until the replica
# has written it down, as long as that takes. The file `source` has the number of the source.

pair_programs() {
  [ -s "$home/source" ] || echo 1 >"$home/source"
  names
}

# What MySQL calls source and replica is master and slave in MariaDB.
names() {
  source=source replica=replica fence=super_read_only
  [ "$family" = mysql ] || source=master replica=slave fence=read_only
}

source_number() { cat "$home/source"; }
is_source() { [ "$member" = "$(source_number)" ]; }
other_member() { echo $((3 - member)); }

pair_options() {
  # It starts read-only, and its replication stands still, until it is told what it is. The timeout is the greatest there
  # is, seven weeks: a commit is never acknowledged by one server alone.
  options+=("--${fence//_/-}=ON" --skip-$replica-start --sync-binlog=1 --$replica-net-timeout=5
    --report-host="$(client_address "$member")" --report-port=3306
    --rpl-semi-sync-$source-timeout=4294967295 --rpl-semi-sync-$source-wait-point=AFTER_SYNC
    --rpl-semi-sync-$replica-enabled=ON)
  if [ "$family" = mysql ]; then
    options+=(--gtid-mode=ON --enforce-gtid-consistency=ON "--plugin-load-add=semisync_source.so;semisync_replica.so")
  else
    # Only in strict mode a source that comes back takes from the other one what it had written itself and forgotten.
    options+=(--log-bin=binlog --relay-log=relay --log-slave-updates --gtid-strict-mode=ON)
  fi
  if is_source; then
    options+=(--rpl-semi-sync-$source-enabled=ON)
  elif [ "$family" = mariadb ]; then
    # A killed source forgets what no replica had acknowledged.
    options+=(--init-rpl-role=SLAVE)
  fi
}

pair_state() { sql "SELECT IF(@@global.read_only, 'read-only', 'writable')"; }

pair_start() {
  for member in $(members); do at "$member"; alive || launch_member; done
  for member in $(members); do at "$member"; await_member; done
  at "$(source_number)"
  be_source
  at "$(other_member)"
  be_replica
}

pair_rejoin() {
  launch_member
  await_member
  if is_source; then be_source; else be_replica; fi
}

be_source() {
  must_sql "STOP $replica; RESET $replica ALL; SET GLOBAL rpl_semi_sync_${source}_enabled = ON; SET GLOBAL read_only = OFF"
}

be_replica() {
  must_sql "SET GLOBAL $fence = ON; SET GLOBAL rpl_semi_sync_${source}_enabled = OFF"
  [ "$(followed)" = "$(member_address "$(source_number)")" ] || follow_source
  must_sql "START $replica"
  if [ -z "$(cut_off)" ]; then
    at "$(source_number)"
    await_sql 30 "SHOW STATUS LIKE 'Rpl_semi_sync_${source}_clients'" $'Rpl_semi_sync_'$source$'_clients\t1' || {
      die "$kind $(other_member) does not replicate; its log is $home/$(other_member)/log"
    }
    at "$(other_member)"
  fi
}

# Tells what keeps the two from each other.
cut_off() {
  local member=$member dir=$dir
  for member in 1 2; do
    at "$member"
    alive || echo "$member does not run"
    plugged "$member" members || echo "$member is isolated"
    ! frozen || echo "$member is frozen"
  done
}

# The address of whom the member in hand replicates: where that is right already, a change would delete the relay log,
# with transactions that may be nowhere else any more.
followed() { must_sql "SHOW $replica STATUS" | cut -f2; }

follow_source() {
  local host
  host=$(member_address "$(source_number)")
  if [ "$family" = mariadb ]; then
    must_sql "STOP SLAVE; CHANGE MASTER TO MASTER_HOST = '$host', MASTER_USER = 'replication',
      MASTER_PASSWORD = 'replication', MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos, MASTER_DEMOTE_TO_SLAVE = 1"
    return
  fi
  ! diverged || begin_again
  must_sql "STOP REPLICA; CHANGE REPLICATION SOURCE TO SOURCE_HOST = '$host', SOURCE_USER = 'replication',
    SOURCE_PASSWORD = 'replication', SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 1000000, SOURCE_AUTO_POSITION = 1,
    GET_SOURCE_PUBLIC_KEY = 1"
}

# True when this one, a source until now, has committed what the other has not: it was never acknowledged, but cannot be
# taken back. (A source of MariaDB that was killed forgets it.)
diverged() {
  [ -z "$(cut_off)" ] || return 1
  local own others
  own=$(must_sql "SELECT REPLACE(@@GLOBAL.gtid_executed, '\n', '')")
  others=$(at "$(other_member)"; must_sql "SELECT REPLACE(@@GLOBAL.gtid_executed, '\n', '')")
  [ "$(must_sql "SELECT GTID_SUBSET('$own', '$others')")" = 0 ]
}

# With empty data: the other's binary log has all that ever was. (A copy of its data, CLONE INSTANCE, has to wait for
# commits, and these for this replica.) It gets another number, for a replica leaves out what it takes for its own.
begin_again() {
  say "$kind $member has transactions that the source has not: it begins again"
  kill_server "$kind $member"
  give_first_data
  echo $(($(cat "$dir/server_id" 2>/dev/null || echo "$member") + 2)) >"$dir/server_id"
  launch_member
  await_member
}

# --- failover -------------------------------------------------------------------------------------------------------

# What an operator does, or a tool such as Orchestrator. The other one is made read-only first if it can be reached; if
# commits wait in it for a replica that it has lost, it stays as it is until its return.
pair_promote() {
  names
  "find_$family"
  ! is_source || return 0
  alive || die "$kind $member is not running"
  local new=$member
  at "$(other_member)"
  local reached=
  if reachable_by_operator; then
    if fence_member; then reached=yes; else say "$kind $member cannot be made read-only: commits wait in it"; fi
  fi
  at "$new"
  await_relay_log
  echo "$new" >"$home/source"
  be_source
  at "$(other_member)"
  [ -z "$reached" ] || be_replica
}

reachable_by_operator() { alive && ! frozen && plugged "$member" clients; }
frozen() { [ "$(process "$(pid)" | cut -c1)" = T ]; }
fence_member() { within=10 sql "SET SESSION lock_wait_timeout = 3; SET GLOBAL $fence = ON"; }

await_relay_log() {
  must_sql "STOP $replica IO_THREAD"
  if [ "$family" = mysql ]; then
    within=70 must_sql "SELECT WAIT_FOR_EXECUTED_GTID_SET((SELECT RECEIVED_TRANSACTION_SET FROM
      performance_schema.replication_connection_status WHERE CHANNEL_NAME = ''), 60)" | grep -qx 0
  else
    await_sql 60 "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Slave has read all relay log%'" 1
  fi || die "$kind $member has not applied its relay log"
}

# Of a member that was frozen or isolated while the other one was promoted. Commits that wait in it must fail.
pair_return() {
  names
  "find_$family"
  if is_source || ! alive; then return; fi
  fence_member || { kill_server "$kind $member"; launch_member; await_member; }
  be_replica
}
