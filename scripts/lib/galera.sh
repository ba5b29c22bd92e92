# mariadb-cluster: Galera.
provider=/usr/lib/galera/libgalera_smm.so

galera_programs() {
  local scripts=$cache/mariadb-wsrep
  command -v rsync >/dev/null && [ -e $provider ] || install_packages galera-4 rsync
  (lock 8 "$scripts.lock"; [ -d "$scripts" ] || unpack_state_transfer "$scripts")
  PATH=$scripts:$PATH
}

# The scripts that copy a member's data to another are in Debian's mariadb-server, which would start a service if it were
# installed.
unpack_state_transfer() { # folder
  need_root mariadb-server
  local partial=$1.partial
  rm -rf "$partial" && mkdir -p "$partial"
  quietly "${as_root[@]}" apt-get -qq update
  (cd "$partial" && quietly apt-get -qq download mariadb-server && quietly dpkg-deb -x mariadb-server_*.deb . && rm -- *.deb)
  # Without it the receiving rsync writes as nobody, who has no right to do so.
  sed -i 's/^use chroot = no$/&\nuid = 0\ngid = 0/' "$partial/usr/bin/wsrep_sst_rsync"
  mv "$partial/usr/bin" "$1"
  rm -rf "$partial"
}

galera_options() {
  local all=() other
  for other in $(members); do all+=("$(member_address "$other")"); done
  # Timeouts are half of those as shipped: a member that is gone is voted out after 3 to 6 seconds.
  options+=(--wsrep-on=ON --wsrep-provider=$provider --wsrep-cluster-name=halfmq
    --wsrep-cluster-address="gcomm://$(IFS=,; echo "${all[*]}")" --wsrep-node-name="member-$member"
    --wsrep-node-address="$(member_address "$member")" --wsrep-node-incoming-address="$(client_address "$member"):3306"
    --wsrep-sst-method=rsync --binlog-format=ROW --innodb-autoinc-lock-mode=2 --innodb-flush-log-at-trx-commit=1
    "--wsrep-provider-options=evs.suspect_timeout=PT3S;evs.inactive_timeout=PT6S;evs.install_timeout=PT6S")
}

status_of() { echo "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'wsrep_$1'"; }

galera_return() { :; } # by itself

galera_state() {
  sql "SELECT CONCAT(($(status_of local_state_comment)), ', component ', ($(status_of cluster_status)))"
}

galera_start() {
  local joining=()
  galera_lives || bootstrap_galera
  for member in $(members); do
    at "$member"
    if alive; then continue; fi
    galera_rejoin &
    joining+=($!)
  done
  for job in "${joining[@]}"; do wait "$job" || die "$kind has not become whole"; done
  for member in $(members); do at "$member"; await_synced; done
}

galera_rejoin() {
  launch_member --wsrep-start-position="$(position)"
  await_member
  await_synced
}

await_synced() {
  await_sql 60 "$(status_of local_state_comment)" Synced || die "$kind $member has not joined; its log is $dir/log"
}

# True when a member is in the primary component.
galera_lives() {
  local member dir
  for member in $(members); do
    at "$member"
    if alive && [ "$(sql "$(status_of cluster_status)")" = Primary ]; then return 0; fi
  done
  return 1
}

# By the member that is the most advanced: of those that run, if any does.
bootstrap_galera() {
  local best=1 most=-2 own running=
  any_alive && running=yes
  for member in $(members); do
    at "$member"
    if alive; then own=$(sql "$(status_of last_committed)"); elif [ -z "$running" ]; then own=$(position); else own=-3; fi
    own=${own##*:}
    if [ "$own" -gt "$most" ]; then best=$member most=$own; fi
  done
  at "$best"
  if [ -n "$running" ]; then must_sql "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'"; return; fi
  rm -f "$home"/*/data/gvwstate.dat # the component that they were in last
  [ ! -e "$dir/data/grastate.dat" ] || sed -i 's/^safe_to_bootstrap:.*/safe_to_bootstrap: 1/' "$dir/data/grastate.dat"
  launch_member --wsrep-new-cluster --wsrep-start-position="$(position)"
  await_member
  await_synced
}

# Of a member that does not run, what it has committed: the history's identity and a number. Its file tells it after a
# shutdown, the storage engine after a crash.
position() {
  local file=$dir/data/grastate.dat history number
  local none=00000000-0000-0000-0000-000000000000:-1
  [ -e "$file" ] || { echo $none; return; }
  history=$(sed -n 's/^uuid: *//p' "$file")
  number=$(sed -n 's/^seqno: *//p' "$file")
  if [ "$number" != -1 ]; then echo "$history:$number"; return; fi
  local options=()
  server_options 128M
  galera_options
  rm -f "$dir/recovery.log"
  "${server[@]}" "${options[@]}" --wsrep-recover --log-error="$dir/recovery.log" >/dev/null 2>&1 </dev/null 8>&- 9>&- || true
  sed -n 's/.*WSREP: Recovered position: *//p' "$dir/recovery.log" | tail -n 1 | grep . || echo $none
}
