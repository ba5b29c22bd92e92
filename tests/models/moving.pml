/* A topic moves from one cell to another, each a database of its own: the design of docs/decisions/0063, not built.
 *
 * What is true of a topic stands in its row in each of the two cells; the directory in the home database is only where
 * brokers look first, and may be out of date: here they try any cell. Each step of the move is one database transaction
 * in one cell, guarded by that cell's row, and numbered by the move. Movers run on several brokers, crash, and their
 * COMMITs may come late.
 */

#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef MESSAGES
#define MESSAGES 2    /* that are sent meanwhile; one was in the log before, and is leased */
#endif
#ifndef MOVES
#define MOVES 2       /* attempts; each but the last may be given up */
#endif
#ifndef RESENDS
#define RESENDS 1
#endif

#define OLD 0
#define NEW 1
#define MOST (MESSAGES + 1)
#define SESSIONS 5                   /* two brokers, two movers, and one in doubt */
#define IN_DOUBT 4

mtype = { NOTHING, SEND, ACK, BEGIN, COPY, SEAL, COPY_REST, ACTIVATE, FINISH, GIVE_UP, UNSEAL }
mtype = { ABSENT, INCOMING, ACTIVE, SEALED, GONE }

/* The topic's row in each cell, its log, its lease. */
mtype state[2]
byte move[2]                         /* the number of the move that the state is of */
byte given_up = 0                    /* in the new cell: moves up to this number were */
byte length[2]
typedef Log { byte message[MOST] }
Log log[2]
bool leased[2]
bool rest_copied = false             /* in the new cell's row */

mtype work[SESSIONS] = NOTHING
byte cell[SESSIONS]
byte value[SESSIONS]                 /* message, or number of the move */
byte place[SESSIONS]

byte faults = FAULTS, asked[MESSAGES]
bool acknowledged[MESSAGES]
bool lease_acknowledged = false, ack_asked = true

#define contains(c, m) (log[c].message[0] == m || log[c].message[1] == m || (MOST > 2 && log[c].message[2] == m))

#define append(c, m) assert(length[c] < MOST); log[c].message[length[c]] = m; length[c]++

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
  :: work[s] == ACK && state[cell[s]] == ACTIVE -> leased[cell[s]] = false; done = true
  :: work[s] == BEGIN && state[NEW] == ABSENT && given_up < value[s] ->
     state[NEW] = INCOMING; move[NEW] = value[s]
#ifdef BROKEN_COPY_UNGUARDED
  :: work[s] == COPY && state[NEW] != ABSENT && length[NEW] == place[s] -> append(NEW, log[OLD].message[place[s]])
  :: work[s] == COPY_REST && state[NEW] != ABSENT -> leased[NEW] = (place[s] == 1 -> true : false); rest_copied = true
#else
  :: work[s] == COPY && state[NEW] == INCOMING && move[NEW] == value[s] && length[NEW] == place[s] ->
     append(NEW, log[OLD].message[place[s]])
  :: work[s] == COPY_REST && state[NEW] == INCOMING && move[NEW] == value[s] ->
     leased[NEW] = (place[s] == 1 -> true : false); rest_copied = true
#endif
  :: work[s] == SEAL && state[OLD] == ACTIVE && move[OLD] < value[s] -> state[OLD] = SEALED; move[OLD] = value[s]
  :: work[s] == ACTIVATE && state[NEW] == INCOMING && move[NEW] == value[s] && rest_copied &&
     length[NEW] == place[s] -> state[NEW] = ACTIVE
  :: work[s] == FINISH && state[OLD] == SEALED && move[OLD] == value[s] -> state[OLD] = GONE
  :: work[s] == GIVE_UP && state[NEW] == INCOMING && move[NEW] == value[s] ->
     state[NEW] = ABSENT; given_up = value[s];
     length[NEW] = 0; leased[NEW] = false; rest_copied = false;
     log[NEW].message[0] = 0; log[NEW].message[1] = 0; log[NEW].message[MOST - 1] = 0
#ifdef BROKEN_UNSEALED_BY_ANY_MOVE
  :: work[s] == UNSEAL && state[OLD] == SEALED -> state[OLD] = ACTIVE
#else
  :: work[s] == UNSEAL && state[OLD] == SEALED && move[OLD] == value[s] -> state[OLD] = ACTIVE
#endif
  :: else
  fi;
  assert(!(state[OLD] == ACTIVE && state[NEW] == ACTIVE));          /* one place to write to */
  assert(!lease_acknowledged || !(state[OLD] == ACTIVE && leased[OLD]));
  assert(!lease_acknowledged || !(state[NEW] == ACTIVE && leased[NEW]));
  /* Nothing skipped, nothing in another order. */
  assert(state[NEW] != ACTIVE || length[NEW] >= length[OLD]);
  assert(length[NEW] < 1 || log[NEW].message[0] == log[OLD].message[0]);
  assert(length[NEW] < 2 || length[OLD] < 2 || log[NEW].message[1] == log[OLD].message[1])
}

inline close(s) { work[s] = NOTHING; cell[s] = 0; value[s] = 0; place[s] = 0 }

/* One database transaction, whose COMMIT is answered, or not; or it comes late. */
inline transact()
{
  if
  :: execute(me); close(me); answered = done
  :: faults > 0 -> faults--; execute(me); close(me); answered = false
  :: faults > 0 && work[IN_DOUBT] == NOTHING ->
     faults--; work[IN_DOUBT] = work[me]; cell[IN_DOUBT] = cell[me]; value[IN_DOUBT] = value[me];
     place[IN_DOUBT] = place[me]; close(me); answered = false
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
    :: where = OLD
    :: where = NEW
    fi }
send:
  atomic { (state[OLD] == ACTIVE || state[NEW] == ACTIVE) ->        /* otherwise it waits a moment, and is refused */
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
proctype Mover(byte me)
{
  bool done, answered;
end:
  atomic {
    if
    :: state[OLD] == ACTIVE && state[NEW] == ABSENT && given_up < MOVES ->
       work[me] = BEGIN; value[me] = given_up + 1
    :: state[NEW] == INCOMING && length[NEW] < length[OLD] ->
       work[me] = COPY; value[me] = move[NEW]; place[me] = length[NEW]
    :: state[NEW] == INCOMING && state[OLD] == ACTIVE && move[OLD] < move[NEW] ->
       work[me] = SEAL; value[me] = move[NEW]
#ifdef BROKEN_NOT_SEALED
    :: state[NEW] == INCOMING && !rest_copied ->
#else
    :: state[NEW] == INCOMING && state[OLD] == SEALED && move[OLD] == move[NEW] && !rest_copied ->
#endif
       work[me] = COPY_REST; value[me] = move[NEW]; place[me] = leased[OLD]
#ifdef BROKEN_NOT_COMPARED
    :: state[NEW] == INCOMING && state[OLD] == SEALED && move[OLD] == move[NEW] && rest_copied ->
       work[me] = ACTIVATE; value[me] = move[NEW]; place[me] = length[NEW]
#elif defined(BROKEN_NOT_SEALED)
    :: state[NEW] == INCOMING && rest_copied && length[NEW] == length[OLD] ->
       work[me] = ACTIVATE; value[me] = move[NEW]; place[me] = length[OLD]
#else
    :: state[NEW] == INCOMING && state[OLD] == SEALED && move[OLD] == move[NEW] && rest_copied &&
       length[NEW] == length[OLD] ->
       work[me] = ACTIVATE; value[me] = move[NEW]; place[me] = length[OLD]
#endif
    :: state[NEW] == ACTIVE && state[OLD] == SEALED -> work[me] = FINISH; value[me] = move[OLD]
    :: state[NEW] == INCOMING && move[NEW] < MOVES ->        /* an operator gives it up */
       work[me] = GIVE_UP; value[me] = move[NEW]
    :: state[OLD] == SEALED && given_up >= move[OLD] -> work[me] = UNSEAL; value[me] = move[OLD]
    fi }
  atomic { transact(); answered = false; goto end }
}

proctype Quiet()
{
  byte m;
  timeout ->
  assert(state[OLD] == ACTIVE || state[NEW] == ACTIVE);
  for (m : 0 .. MESSAGES - 1) {
    assert(!acknowledged[m] || contains((state[NEW] == ACTIVE -> NEW : OLD), 101 + m)) }
}

init {
  atomic {
    state[OLD] = ACTIVE; state[NEW] = ABSENT; log[OLD].message[0] = 100; length[OLD] = 1; leased[OLD] = true;
    run Broker(0); run Broker(1); run Mover(2); run Mover(3); run Server(IN_DOUBT); run Producer(); run Quiet()
  }
}
