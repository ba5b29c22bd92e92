/* The life of one transaction: prepare, verdict, check, release; two brokers on one database.
 *
 * What a broker does to the database is modelled database transaction by database transaction, and within one of them
 * step by step where another session may come between: a wait for a row lock, a look without a lock. The statements that
 * go in one packet with the COMMIT are one step (`execute`); they verify what they rest on, or nothing of the packet is
 * done. Time is not counted: whatever is due later may be due now.
 *
 *   step here                        code
 *   PREPARE_NEW                      broker/storage/transactions/halves.py, _prepare_all
 *   look_at_halves ... INSERT_HALF   halves.py, _prepare_one
 *   DECIDE_KNOWN                     broker/storage/transactions/verdicts.py, _decide_from_memory
 *   lock_halves ... DECIDE           verdicts.py, decide, _decide, _apply
 *   COUNT_CHECK, its redo            broker/storage/transactions/checks.py, claim_due, was_claimed
 *   RETURN_CHECK                     checks.py, return_check
 *   PARK                             checks.py, park_exhausted
 *   SWEEP                            halves.py, sweep_decided
 *   commit_now, a session in doubt   broker/storage/engine/transaction_runner.py, transact; batches.py
 *
 * Each BROKEN_... is a fault that the checker must find: tests/models/checking.py.
 */

#ifndef WORKERS
#define WORKERS 2     /* sessions that write, on two brokers in turn */
#endif
#ifndef IN_DOUBT_MOST
#define IN_DOUBT_MOST 1 /* sessions whose COMMIT was sent and is not answered, at a time */
#endif
#ifndef FAULTS
#define FAULTS 2      /* crashes, lost connections, lost replies, doubled requests: together */
#endif
#ifndef RESENDS
#define RESENDS 1     /* of each call of the producer */
#endif
#ifndef MAX_CHECKS
#define MAX_CHECKS 2
#endif
#ifndef RETURNS
#define RETURNS 1     /* checks that no stream accepts */
#endif

#define SESSIONS (WORKERS + IN_DOUBT_MOST)
#define FREE 255

mtype = { NOTHING, PREPARE_NEW, INSERT_HALF, DECIDE_KNOWN, DECIDE, RELEASE, COUNT_CHECK, RETURN_CHECK, PARK, SWEEP }
mtype = { NONE, COMMITTED, ROLLED_BACK, UNDECIDED }     /* verdicts, also those of the local transaction */
mtype = { TO_CHECK, LAST_CHECK_SENT, PARKED }   /* check_state of the half message */
mtype = { ANSWERED, STARTS_OVER, UNKNOWN }              /* what a COMMIT tells */
mtype = { PREPARED, CONFLICT, NOT_FOUND }               /* answers, with the verdicts */

/* The tables: half_message, op_record, transaction_check, and the log. */
bool half = false
byte half_lock = FREE                /* the session that holds the row, or its key */
mtype check_state = TO_CHECK
byte check_count = 0
mtype op = NONE
byte sender[MAX_CHECKS + 1]          /* the claim that counted a check of this number; 0: no row */
byte visible = 0                     /* how often the message is in the log */

/* The sessions' last packets. */
mtype work[SESSIONS] = NOTHING
mtype verdict[SESSIONS] = NONE
byte number[SESSIONS]                /* of the check */
byte claim[SESSIONS]                 /* by which a broker knows its own check: broker and time */

/* Under way between producers and brokers: in any order, to any broker, and more than once. */
byte asked_prepare = 0, asked_commit = 0, asked_rollback = 0, checks_under_way = 0
mtype awaited = NOTHING              /* the call that the producer waits for: PREPARE_NEW, DECIDE or NOTHING */
mtype answer = NOTHING               /* to it: PREPARED, COMMITTED, ROLLED_BACK, CONFLICT or NOT_FOUND */

#define AT_ONCE 2                    /* requests of a kind under way; more are not told apart from these */
#define ask(which) which = (which < AT_ONCE -> which + 1 : which)
#define tell(call, what) answer = (awaited == call -> what : answer)

mtype local_outcome = UNDECIDED      /* of the producer's local transaction, which is the truth */
bool prepare_acknowledged = false

byte faults = FAULTS, returns = RETURNS, checks_sent = 0
bool known[2]                        /* a broker remembers that it prepared the transaction: prepared_here.py */

inline new_half() { half = true; check_state = TO_CHECK; check_count = 0 }

inline record(wanted)
{
  assert(op == NONE);                                    /* a verdict never changes */
  assert(!half || check_state != PARKED);                /* parked is decided by nobody but an operator */
  op = wanted;
#ifdef BROKEN_RELEASE_APART
  skip
#else
  if
  :: wanted == COMMITTED -> visible++
  :: else
  fi;
  half = false
#endif
}

/* The last packet of a session. `done`: its COMMIT was reached. */
inline execute(s)
{
  done = true;
  if
  :: work[s] == PREPARE_NEW ->
     if
     :: half || op != NONE -> done = false
     :: else -> new_half()
     fi
  :: work[s] == INSERT_HALF -> new_half()
  :: work[s] == DECIDE_KNOWN ->
     if
     :: half && check_count == 0 && check_state != PARKED && op == NONE -> record(verdict[s])
#ifdef BROKEN_LATE_COMMIT_UNGUARDED
     :: s >= WORKERS && (half || op != NONE) -> record(verdict[s])
#endif
     :: else -> done = false
     fi
  :: work[s] == DECIDE ->
     if
#ifdef BROKEN_OP_UNGUARDED
     :: half -> record(verdict[s])
#else
     :: op == NONE -> record(verdict[s])
#endif
     :: else -> done = false
     fi
  :: work[s] == RELEASE ->                               /* only with BROKEN_RELEASE_APART */
     if
     :: verdict[s] == COMMITTED -> visible++
     :: else
     fi;
     half = false
  :: work[s] == COUNT_CHECK ->
     check_count = number[s];
     check_state = (number[s] >= MAX_CHECKS -> LAST_CHECK_SENT : TO_CHECK);
     sender[number[s]] = claim[s]
  :: work[s] == RETURN_CHECK ->
     check_count--; check_state = TO_CHECK; sender[number[s]] = 0
  :: work[s] == PARK -> check_state = PARKED
  :: work[s] == SWEEP -> half = false
  :: work[s] == NOTHING -> skip
  fi;
  assert(visible <= 1);                                  /* one effect */
  assert(visible == 0 || local_outcome == COMMITTED)             /* nothing undecided or rolled back is seen */
}

inline send_check()
{
  checks_under_way++; checks_sent++;
  assert(checks_sent <= MAX_CHECKS)                      /* at most so many checks */
}

/* Whether a check of the history, or one under way to it, is of this claim. */
#if IN_DOUBT_MOST > 1
#define is_in_doubt(c) (is_of(IN_DOUBT, c) || is_of(IN_DOUBT + 1, c))
#else
#define is_in_doubt(c) is_of(IN_DOUBT, c)
#endif
#define is_of(s, c) (work[s] == COUNT_CHECK && claim[s] == c)
#ifdef BROKEN_RETURN_UNGUARDED
#define is_own_check() (half && check_count > 0)
#else
#define is_own_check() \
  (half && check_count == own_number && check_state != PARKED && sender[own_number] == own_claim)
#endif
#if MAX_CHECKS == 2
#define in_use(c) (sender[1] == c || sender[2] == c || is_in_doubt(c))
#elif MAX_CHECKS == 1
#define in_use(c) (sender[1] == c || is_in_doubt(c))
#else
#define in_use(c) (sender[1] == c || sender[2] == c || sender[3] == c || is_in_doubt(c))
#endif

inline unlock(s)
{
  if
  :: half_lock == s -> half_lock = FREE
  :: else
  fi
}

inline close(s) { unlock(s); work[s] = NOTHING; verdict[s] = NONE; number[s] = 0; claim[s] = 0 }

#define IN_DOUBT WORKERS             /* the first session of those whose COMMIT was not answered */

/* COMMIT of worker `me`, with its packet, which waits for rows that others hold unless they are its own. */
inline commit_now()
{
  if
  :: half_lock == FREE || half_lock == me ->
     execute(me); close(me);
     if
     :: outcome = (done -> ANSWERED : STARTS_OVER)
     :: faults > 0 -> faults--; outcome = UNKNOWN                 /* its reply is lost */
     fi
  :: faults > 0 && work[IN_DOUBT] == NOTHING ->                   /* it is under way: executed later, or never */
     faults--; leave_to(IN_DOUBT); outcome = UNKNOWN
#if IN_DOUBT_MOST > 1
  :: faults > 0 && work[IN_DOUBT] != NOTHING && work[IN_DOUBT + 1] == NOTHING ->
     faults--; leave_to(IN_DOUBT + 1); outcome = UNKNOWN
#endif
  fi;
  done = false
}

inline leave_to(s)
{
  work[s] = work[me]; verdict[s] = verdict[me]; number[s] = number[me]; claim[s] = claim[me];
  if
  :: half_lock == me -> half_lock = s
  :: else
  fi;
  close(me)
}

/* The database's side of connections that are gone. */
proctype Server(byte s)
{
  bool done;
end:
  do
  :: atomic { work[s] != NOTHING && (half_lock == FREE || half_lock == s) ->
       if
       :: execute(s)
       :: skip                                           /* idle_transaction_timeout ended it, or it never came */
       fi;
       close(s); done = false }
  od
}

/* One lane of a broker. A broker that crashes forgets all; its database transaction is rolled back. */
proctype Worker(byte me)
{
  bool done, pending, all_looked_up;
  mtype wanted = NONE, outcome = ANSWERED, doing = NOTHING;
  byte own_number, own_claim;

#define crash() faults > 0 -> faults--; close(me); known[me % 2] = false; goto finished

end_idle:
  atomic {
    if
    :: asked_prepare > 0 -> asked_prepare--; goto prepare
    :: asked_commit > 0 -> asked_commit--; wanted = COMMITTED; goto decide
    :: asked_rollback > 0 -> asked_rollback--; wanted = ROLLED_BACK; goto decide
    :: half && check_state == TO_CHECK && op == NONE -> goto check
    :: half && check_state == LAST_CHECK_SENT && half_lock == FREE -> half_lock = me; work[me] = PARK; goto commit
    :: half && op != NONE && half_lock == FREE -> half_lock = me; work[me] = SWEEP; goto commit
    fi }

prepare:
  if
  :: work[me] = PREPARE_NEW; goto commit
  :: goto look_at_halves                                 /* another one of its batch was stored before */
  fi;
look_at_halves:
  atomic { half_lock == FREE ->
    pending = half;
    if
    :: half -> half_lock = me
    :: else
    fi }
  atomic {
    if
    :: op != NONE -> close(me); goto finished            /* decided before: nothing is stored */
    :: op == NONE && pending ->
       close(me);
       if
       :: check_state == PARKED -> goto finished
       :: else -> goto prepared
       fi
    :: op == NONE && !pending -> goto insert_half
    :: crash()
    fi }
insert_half:
  atomic { half_lock == FREE ->
    if
    :: half -> goto look_at_halves                       /* a duplicate key: again */
    :: else -> half_lock = me; work[me] = INSERT_HALF; goto commit
    fi }
prepared:
  atomic { assert(half || op != NONE); tell(PREPARE_NEW, PREPARED); goto finished }

decide:
#ifdef BROKEN_ACK_BEFORE_COMMIT
  if
  :: half && op == NONE && wanted == COMMITTED -> tell(DECIDE, COMMITTED)
  :: else
  fi;
#endif
  if
  :: atomic { known[me % 2] -> work[me] = DECIDE_KNOWN; verdict[me] = wanted; goto commit }
  :: goto lock_halves                                    /* it, or another one of its batch, is not known */
  fi;
lock_halves:
  atomic { half_lock == FREE ->
    pending = half;
    if
    :: half -> half_lock = me
    :: else
    fi }
  atomic {
    if
    :: crash()
    :: (!pending || all_looked_up) && op != NONE ->
       if
       :: op == wanted -> close(me); goto decided
       :: op != wanted -> close(me); tell(DECIDE, CONFLICT); goto finished
       fi
    :: !pending && op == NONE -> close(me); tell(DECIDE, NOT_FOUND); goto finished
#ifdef BROKEN_PARKED_DECIDED
    :: pending && !(all_looked_up && op != NONE) ->
#else
    :: pending && !(all_looked_up && op != NONE) && check_state == PARKED ->
       close(me); tell(DECIDE, CONFLICT); goto finished
    :: pending && !(all_looked_up && op != NONE) && check_state != PARKED ->
#endif
       work[me] = DECIDE; verdict[me] = wanted; goto commit
    fi }
release_apart:                                           /* only with BROKEN_RELEASE_APART */
  atomic {
    if
    :: half_lock == FREE -> half_lock = me; work[me] = RELEASE; verdict[me] = wanted; goto commit
    :: crash()
    fi }
decided:
  atomic {
    assert(op == wanted);
#ifndef BROKEN_RELEASE_APART
    assert(wanted != COMMITTED || visible == 1);         /* what is acknowledged is visible */
#endif
    tell(DECIDE, wanted);
    goto finished }

check:
  atomic {
    if
    :: half_lock == FREE && half && check_state == TO_CHECK ->     /* SKIP LOCKED, and looked at again */
       own_claim = 16 * me + 1;                          /* the broker, and a time that is nobody's */
       do
       :: in_use(own_claim) -> own_claim++
       :: else -> break
       od;
       own_number = check_count + 1;
#ifdef BROKEN_CHECK_SENT_FIRST
       send_check();
#endif
       half_lock = me; work[me] = COUNT_CHECK; number[me] = own_number; claim[me] = own_claim; goto commit
    :: else -> goto finished
    fi }
was_claimed:
  /* The history tells, after a wait for the session in doubt, which holds its row. */
  atomic { !is_in_doubt(own_claim) ->
    if
    :: sender[own_number] == own_claim
    :: else -> goto finished                             /* a later round claims again */
    fi }
counted:
#ifdef BROKEN_CHECK_SENT_FIRST
  goto finished;
#endif
  if
  :: atomic { send_check(); goto finished }
  :: atomic { crash() }                                  /* counted, and never sent */
  :: atomic { returns > 0 -> returns-- }                 /* no stream takes it */
  fi;
return_check:
  atomic { half_lock == FREE ->                          /* its UPDATE waits for the row, then for the COMMIT */
    if
    :: is_own_check() ->
       half_lock = me; work[me] = RETURN_CHECK; number[me] = own_number; claim[me] = own_claim; goto commit
    :: else -> goto finished
    fi }

commit:
  atomic {
    doing = work[me];
    if
    :: commit_now()
    :: crash()
    fi;
    if
    :: outcome == UNKNOWN -> goto finished               /* patience ended, or it crashed: its caller gets no answer */
    :: outcome == UNKNOWN && (doing == PREPARE_NEW || doing == INSERT_HALF) -> goto prepare
    :: outcome == UNKNOWN && (doing == DECIDE_KNOWN || doing == DECIDE) -> goto decide
    :: outcome == UNKNOWN && doing == COUNT_CHECK -> goto was_claimed
    :: outcome == UNKNOWN && doing == RETURN_CHECK -> goto return_check
    :: outcome == STARTS_OVER && doing == PREPARE_NEW -> goto look_at_halves
    :: outcome == STARTS_OVER && doing == DECIDE_KNOWN -> known[me % 2] = false; goto lock_halves
    :: outcome == STARTS_OVER && doing == DECIDE -> all_looked_up = true; goto lock_halves
    :: outcome == ANSWERED && (doing == PREPARE_NEW || doing == INSERT_HALF) -> known[me % 2] = true; goto prepared
#ifdef BROKEN_RELEASE_APART
    :: outcome == ANSWERED && doing == DECIDE -> goto release_apart
    :: outcome == ANSWERED && (doing == DECIDE_KNOWN || doing == RELEASE) -> goto decided
#else
    :: outcome == ANSWERED && (doing == DECIDE_KNOWN || doing == DECIDE) -> goto decided
#endif
    :: outcome == ANSWERED && doing == COUNT_CHECK -> goto counted
    :: outcome == ANSWERED && (doing == RETURN_CHECK || doing == PARK || doing == SWEEP) -> goto finished
    fi }

finished:
  atomic {
    wanted = NONE; outcome = ANSWERED; doing = NOTHING; pending = false; all_looked_up = false;
    own_number = 0; own_claim = 0;
    goto end_idle }
}

/* A call is repeated when its answer is late, so one request may be under way twice; the network doubles some. */
proctype Network()
{
end:
  do
  :: atomic { faults > 0 && asked_commit == 1 -> faults--; ask(asked_commit) }
  :: atomic { faults > 0 && asked_rollback == 1 -> faults--; ask(asked_rollback) }
  :: atomic { faults > 0 && asked_prepare == 1 -> faults--; ask(asked_prepare) }
  od
}

proctype Producer()
{
  byte left = RESENDS;
  atomic { ask(asked_prepare); awaited = PREPARE_NEW };
  do
  :: atomic { answer == PREPARED -> prepare_acknowledged = true; break }
  :: atomic { left > 0 -> left--; ask(asked_prepare) }
  :: atomic { local_outcome == UNDECIDED ->              /* no answer: it rolls back, perhaps before it is prepared */
       local_outcome = ROLLED_BACK; awaited = DECIDE; answer = NOTHING; left = 0; goto give_verdict }
  :: goto gone                                           /* it crashes, or gives up: checks decide */
  od;
  atomic {                                               /* the local transaction; a check may have taken its key */
    answer = NOTHING;
    awaited = DECIDE;
    left = RESENDS;
    if
    :: local_outcome == UNDECIDED -> local_outcome = COMMITTED
    :: local_outcome == UNDECIDED -> local_outcome = ROLLED_BACK
    :: local_outcome != UNDECIDED
    fi }
give_verdict:
  if
  :: atomic { local_outcome == COMMITTED -> ask(asked_commit) }
  :: atomic { local_outcome == ROLLED_BACK -> ask(asked_rollback) }
  :: goto gone                                           /* it crashes, or the call is lost */
  fi;
  do
  :: atomic { answer == local_outcome ->
       assert(op == local_outcome);                      /* what is told is decided */
       assert(local_outcome != COMMITTED || visible == 1);
       goto gone }
  :: atomic { answer == CONFLICT -> assert(op == local_outcome || check_state == PARKED); goto gone }
  :: atomic { answer == NOT_FOUND -> assert(!prepare_acknowledged); goto gone }   /* what was acknowledged is found */
  :: atomic { left > 0 -> left--; goto give_verdict }
  :: goto gone
  od;
gone:
  atomic { awaited = NOTHING; answer = NOTHING; left = 0 }
}

/* Another instance of the producer's group answers checks; a check takes the key of a transaction that has none (0028). */
proctype Listener()
{
end:
  do
  :: atomic { checks_under_way > 0 -> checks_under_way--;
       if
       :: local_outcome == COMMITTED -> ask(asked_commit)
       :: local_outcome == ROLLED_BACK -> ask(asked_rollback)
       :: local_outcome == UNDECIDED -> local_outcome = ROLLED_BACK; ask(asked_rollback)
       :: skip                                           /* UNKNOWN: only recorded; or the check is lost */
       fi }
  od
}

/* When nothing can happen any more. */
proctype Quiet()
{
  timeout ->
  assert(half_lock == FREE);
  assert(!(half && op != NONE));                         /* swept */
  assert(op != COMMITTED || visible == 1);               /* what is committed is visible */
  assert(op != ROLLED_BACK || visible == 0);
  assert(!prepare_acknowledged || op != NONE || (half && check_state == PARKED));
  assert(!half || check_state == PARKED)                 /* none is forgotten: an operator sees it */
}

init {
  byte i;
  atomic {
    for (i : 0 .. WORKERS - 1) { run Worker(i) }
    for (i : WORKERS .. SESSIONS - 1) { run Server(i) }
    run Network(); run Producer(); run Listener(); run Quiet();
    i = 0
  }
}
