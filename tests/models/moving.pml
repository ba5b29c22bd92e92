/* A topic moves from one cell to another, each a database of its own, and back: broker/storage/moving.
 *
 * What is true of a move stands in the table move_state of each of the two cells, which every transaction of the move
 * locks; the placements in the home database are only where brokers look first, and may be out of date: here they try
 * any cell. The topic's row is in the cell that is moved to only when the move is decided. The seal takes what changes
 * (here the lease) out of its table in the cell that is left; it goes into the other one with the decision, or back when
 * the move is given up. What is left of the topic then is deleted by retention; before that it does not come back. Each
 * step is one database transaction in one database. Movers run in several processes, crash, stand still for as long as
 * they like between two steps, and their COMMITs may come late. A move that has ended is not looked at again.
 */

#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef MESSAGES
#define MESSAGES 2    /* that are sent meanwhile; one was in the log before, and is leased */
#endif
#ifndef MOVES
#define MOVES 2       /* there, and back; or there again, if the first one was given up */
#endif
#ifndef GIVEN_UP
#define GIVEN_UP (MOVES - 1)         /* moves up to this number may be given up */
#endif
#ifndef RESENDS
#define RESENDS 1
#endif

#define MOST (MESSAGES + 2)          /* one more than a correct log has: no bound finds what is wrong */
#define SESSIONS 5                   /* two brokers, two movers, and one in doubt */
#define IN_DOUBT 4

mtype = { NOTHING, SEND, ACK, CLEAN, BEGIN, COPY, SEAL, ACTIVATE, FINISH, GIVE_UP, UNSEAL, WITHDRAW, END }
mtype = { ABSENT, INCOMING, ACTIVE, SEALED, GONE }

/* The topic in each cell, its log, its lease. INCOMING: only the move is noted there, and the log is being copied.
 * GONE: what is left of it has not been deleted. */
mtype state[2]
byte move[2]                         /* the number of the last move that was noted in the cell */
byte given_up[2]                     /* a bitmap: those that were given up there */
byte length[2]
typedef Log { byte message[MOST] }
Log log[2]
bool leased[2]
bool taken[2]                        /* the lease that the seal took out of its table */
byte noted[2]                        /* the move whose copies are noted there */
byte ended = 0                       /* in the home database: moves up to this number have ended */
byte home = 0                        /* there: the cell of the topic */

mtype work[SESSIONS] = NOTHING
byte cell[SESSIONS]                  /* of a move, the one that is left */
byte value[SESSIONS]                 /* message, or number of the move */
byte place[SESSIONS]
bool row[SESSIONS]

byte faults = FAULTS, asked[MESSAGES]
bool acknowledged[MESSAGES]
bool lease_acknowledged = false, ack_asked = true
bool settled = false                 /* an acknowledgement took effect */

#define contains(c, m) \
  (log[c].message[0] == m || log[c].message[1] == m || log[c].message[2] == m || log[c].message[MOST - 1] == m)
#define gave_up(c, n) ((given_up[c] >> (n)) & 1)
#define alike(i) (length[0] <= i || length[1] <= i || log[0].message[i] == log[1].message[i])
#define to(s) (1 - cell[s])
#define is_coming(c, n) (state[c] == INCOMING && move[c] == n)
#define is_sealed(c, n) (state[c] == SEALED && move[c] == n)

inline append(c, new)
{
  assert(!contains(c, new));                             /* no message is twice in a log */
  log[c].message[length[c]] = new; length[c]++
}

inline clear(c)
{
  length[c] = 0;
  log[c].message[0] = 0; log[c].message[1] = 0; log[c].message[2] = 0; log[c].message[MOST - 1] = 0
}

inline execute(s)
{
  done = false;
  if
  :: work[s] == SEND && state[cell[s]] == ACTIVE ->
     if
     :: contains(cell[s], value[s])                      /* its op record: the same answer */
     :: else -> append(cell[s], value[s])
     fi;
     done = true
  :: work[s] == ACK && state[cell[s]] == ACTIVE ->
     if
     :: leased[cell[s]] -> leased[cell[s]] = false; settled = true; done = true
     :: else -> assert(settled); done = settled          /* a receipt is good wherever the topic is */
     fi
#ifdef BROKEN_CLEANED_UNGUARDED
  :: work[s] == CLEAN -> clear(to(s));
     state[to(s)] = (state[to(s)] == GONE -> ABSENT : state[to(s)])
#else
  :: work[s] == CLEAN && state[to(s)] == GONE -> clear(to(s)); state[to(s)] = ABSENT
#endif
#ifdef BROKEN_BEGUN_AGAIN
  :: work[s] == BEGIN && state[to(s)] == ABSENT && !gave_up(to(s), value[s]) ->
#else
  :: work[s] == BEGIN && state[to(s)] == ABSENT && move[to(s)] < value[s] && !gave_up(to(s), value[s]) ->
#endif
     state[to(s)] = INCOMING; move[to(s)] = value[s]; noted[to(s)] = value[s]
#ifdef BROKEN_COPY_UNGUARDED
  :: work[s] == COPY && state[to(s)] != ABSENT -> append(to(s), log[cell[s]].message[place[s]])
#else
  :: work[s] == COPY && is_coming(to(s), value[s]) && length[to(s)] == place[s] ->
     append(to(s), log[cell[s]].message[place[s]])
#endif
#ifdef BROKEN_SEALED_THOUGH_GIVEN_UP
  :: work[s] == SEAL && state[cell[s]] == ACTIVE && move[cell[s]] < value[s] ->
#elif defined(BROKEN_SEALED_AGAIN)
  :: work[s] == SEAL && state[cell[s]] == ACTIVE && !gave_up(cell[s], value[s]) ->
#else
  :: work[s] == SEAL && state[cell[s]] == ACTIVE && move[cell[s]] < value[s] && !gave_up(cell[s], value[s]) ->
#endif
     state[cell[s]] = SEALED; move[cell[s]] = value[s]; taken[cell[s]] = leased[cell[s]]; leased[cell[s]] = false
  :: work[s] == ACTIVATE && is_coming(to(s), value[s]) && length[to(s)] == place[s] ->
     state[to(s)] = ACTIVE; leased[to(s)] = row[s]; noted[to(s)] = 0
  :: work[s] == FINISH && is_sealed(cell[s], value[s]) -> state[cell[s]] = GONE; taken[cell[s]] = false
  :: work[s] == GIVE_UP && is_coming(to(s), value[s]) ->
     state[to(s)] = ABSENT; given_up[to(s)] = given_up[to(s)] | (1 << value[s])
  :: work[s] == GIVE_UP && move[to(s)] < value[s] -> given_up[to(s)] = given_up[to(s)] | (1 << value[s])
#ifdef BROKEN_UNSEALED_BY_ANY_MOVE
  :: work[s] == UNSEAL ->
     given_up[cell[s]] = given_up[cell[s]] | (1 << value[s]);
     if
     :: state[cell[s]] == SEALED ->
#else
  :: work[s] == UNSEAL && !gave_up(cell[s], value[s]) ->
     given_up[cell[s]] = given_up[cell[s]] | (1 << value[s]);
     if
     :: is_sealed(cell[s], value[s]) ->
#endif
#ifndef BROKEN_NOT_PUT_BACK
        leased[cell[s]] = taken[cell[s]];
#endif
        state[cell[s]] = ACTIVE; taken[cell[s]] = false
     :: else
     fi
#ifdef BROKEN_WITHDRAWN_WITHOUT_NOTE
  :: work[s] == WITHDRAW && gave_up(to(s), value[s]) ->
#else
  :: work[s] == WITHDRAW && gave_up(to(s), value[s]) && noted[to(s)] == value[s] ->
#endif
     clear(to(s)); noted[to(s)] = 0
  :: work[s] == END && ended < value[s] -> ended = value[s]; home = (row[s] -> to(s) : home)
  :: else
  fi;
  assert(!(state[0] == ACTIVE && state[1] == ACTIVE));   /* one place to write to */
  assert(!lease_acknowledged || !(leased[0] || leased[1]));         /* what is settled is not leased */
  assert(state[0] != ACTIVE || length[0] >= length[1]);  /* nothing skipped, or wiped out */
  assert(state[1] != ACTIVE || length[1] >= length[0]);  /* nothing skipped, or wiped out */
  assert(alike(0) && alike(1) && alike(2))               /* nothing in another order */
}

inline close(s) { work[s] = NOTHING; cell[s] = 0; value[s] = 0; place[s] = 0; row[s] = false }

/* One database transaction, whose COMMIT is answered, or not; or it comes late. */
inline transact()
{
  if
  :: execute(me); close(me); answered = done
  :: faults > 0 -> faults--; execute(me); close(me); answered = false
  :: faults > 0 && work[IN_DOUBT] == NOTHING ->
     faults--; work[IN_DOUBT] = work[me]; cell[IN_DOUBT] = cell[me]; value[IN_DOUBT] = value[me];
     place[IN_DOUBT] = place[me]; row[IN_DOUBT] = row[me]; close(me); answered = false
  :: faults > 0 -> faults--; close(me); answered = false            /* it never came: the broker crashed */
  fi;
  done = false
}

proctype Server(byte s)
{
  bool done;
end:
  do
  :: atomic { work[s] != NOTHING -> execute(s); close(s); done = false }
  :: atomic { work[s] != NOTHING -> close(s) }
  od
}

/* Tries a cell, and the other one if the topic is not there: what a directory that is out of date comes to. */
proctype Broker(byte me)
{
  bool done, answered;
  byte m, where;
end:
  atomic {
    if
    :: asked[0] > 0 -> m = 1; asked[0]--
#if MESSAGES > 1
    :: asked[1] > 0 -> m = 2; asked[1]--
#endif
    :: ack_asked -> ack_asked = false; m = 0
    fi;
    if
    :: where = 0
    :: where = 1
    fi }
send:
  atomic { (state[0] == ACTIVE || state[1] == ACTIVE) ->        /* otherwise it waits a moment, and is refused */
    work[me] = (m == 0 -> ACK : SEND); value[me] = 100 + m; cell[me] = where }
  atomic {
    transact();
    if
    :: answered && m == 0 -> lease_acknowledged = true; goto end
    :: answered && m != 0 -> acknowledged[m - 1] = true; goto end
    :: !answered && faults < FAULTS -> goto end                     /* no answer; the producer may repeat it */
    :: !answered -> where = 1 - where; goto send                    /* the topic is not there */
    fi }
}

proctype Producer()
{
  byte left = RESENDS, m;
  for (m : 0 .. MESSAGES - 1) { asked[m]++ }
end:
  do
  :: atomic { left > 0 -> left--;
       if
       :: asked[0]++
#if MESSAGES > 1
       :: asked[1]++
#endif
       fi }
  :: atomic { left > 0 && !lease_acknowledged && !ack_asked -> left--; ack_asked = true }
  od
}

/* Reads where the move is, then does the next step; what it read may be out of date by then. */
#define step(what) work[me] = what; cell[me] = from; value[me] = n

proctype Mover(byte me)
{
  bool done, answered;
  byte n, from;
end:
  atomic { ended < MOVES -> n = ended + 1; from = home }
  atomic {
    if
    :: !gave_up(1 - from, n) && state[1 - from] == GONE && move[1 - from] < n -> step(CLEAN)
    :: !gave_up(1 - from, n) && state[1 - from] == ABSENT && move[1 - from] < n -> step(BEGIN)
    :: is_coming(1 - from, n) && length[1 - from] < length[from] -> step(COPY); place[me] = length[1 - from]
#ifdef BROKEN_NOT_SEALED
    :: is_coming(1 - from, n) && length[1 - from] == length[from] ->
       step(ACTIVATE); place[me] = length[from]; row[me] = leased[from]
    :: state[1 - from] == ACTIVE && move[1 - from] == n -> step(END); row[me] = true
#else
    :: is_coming(1 - from, n) && state[from] == ACTIVE -> step(SEAL)
#ifdef BROKEN_NOT_COMPARED
    :: is_coming(1 - from, n) && is_sealed(from, n) ->
       step(ACTIVATE); place[me] = length[1 - from]; row[me] = taken[from]
#else
    :: is_coming(1 - from, n) && is_sealed(from, n) && length[1 - from] == length[from] ->
       step(ACTIVATE); place[me] = length[from]; row[me] = taken[from]
#endif
#endif
    :: state[1 - from] == ACTIVE && move[1 - from] == n && is_sealed(from, n) -> step(FINISH)
    :: state[1 - from] == ACTIVE && move[1 - from] == n && state[from] != SEALED -> step(END); row[me] = true
    :: !gave_up(1 - from, n) && n <= GIVEN_UP && (is_coming(1 - from, n) || move[1 - from] < n) ->
       step(GIVE_UP)                                     /* an operator gives it up */
    :: gave_up(1 - from, n) && !gave_up(from, n) -> step(UNSEAL)
    :: gave_up(1 - from, n) && noted[1 - from] == n -> step(WITHDRAW)
    :: gave_up(1 - from, n) && gave_up(from, n) && noted[1 - from] != n -> step(END)
    :: ended >= n -> n = 0; from = 0; goto end
    fi }
  atomic { transact(); answered = false; n = 0; from = 0; goto end }
}

proctype Quiet()
{
  byte m;
  timeout ->
  assert(state[home] == ACTIVE && state[1 - home] != ACTIVE);       /* the topic is somewhere, and home knows where */
  assert(ended == MOVES);                                /* each move ends */
  assert(settled == !leased[home]);                      /* the lease went with it, or back */
  for (m : 0 .. MESSAGES - 1) {
    assert(!acknowledged[m] || contains(home, 101 + m)) }           /* what is acknowledged is there */
}

init {
  atomic {
    state[0] = ACTIVE; state[1] = ABSENT; log[0].message[0] = 100; length[0] = 1; leased[0] = true;
    run Broker(0); run Broker(1); run Mover(2); run Mover(3); run Server(IN_DOUBT); run Producer(); run Quiet()
  }
}
