/* A transaction over two cells, each on a database of its own: what was looked at for docs/decisions/0063.
 *
 * The half messages of each cell are stored there; the verdict is recorded in the transaction's home cell, whose messages
 * become visible with it; the other cell's are released in a step of its own, by a releaser that repeats itself. Between
 * the two COMMITs the transaction is half visible. Either cell may be away for a while; a broker may crash anywhere.
 *
 * With TOGETHER the promise is examined that both halves appear at once: it does not hold, which is why such transactions
 * are refused.
 */

#ifndef FAULTS
#define FAULTS 2      /* crashes, COMMITs in doubt, cells that go away: together */
#endif
#ifndef RESENDS
#define RESENDS 1
#endif
#ifndef CHECKS
#define CHECKS 1
#endif

#define HOME 0
#define OTHER 1
#define CELLS 2

mtype = { NONE, COMMITTED, ROLLED_BACK, UNDECIDED }
mtype = { ANSWERED, NO_ANSWER, REFUSED }

/* The tables of each cell. */
bool half[CELLS]                     /* half messages of the transaction */
mtype op[CELLS] = NONE               /* its verdict; in the other cell, what was applied there */
byte visible[CELLS]
bool to_release = false              /* written with the verdict in the home cell, deleted when the other cell has it */
bool up[CELLS] = true

byte asked_prepare = 0, asked_commit = 0, asked_rollback = 0, checks = CHECKS
bool told_prepared = false, told_committed = false
mtype local_outcome = UNDECIDED
bool prepare_acknowledged = false
byte faults = FAULTS

#define ask(which) which = (which < 2 -> which + 1 : which)

inline see()
{
  assert(visible[HOME] <= 1 && visible[OTHER] <= 1);     /* one effect in each cell */
  assert(visible[HOME] + visible[OTHER] == 0 || local_outcome == COMMITTED);
#ifdef TOGETHER
  assert(visible[HOME] == visible[OTHER])                /* both at once */
#else
  assert(op[OTHER] == NONE || op[HOME] != NONE);         /* the home cell first */
  assert(op[OTHER] == NONE || op[OTHER] == op[HOME]);    /* decided once */
  assert(visible[HOME] >= visible[OTHER]);
  assert(visible[HOME] == visible[OTHER] || to_release)  /* half visible: only while its release is recorded as due */
#endif
}

/* One database transaction in one cell: `effect` or nothing. The COMMIT's answer may be lost. */
#define transact(cell, effect) \
  if \
  :: up[cell] -> effect; see(); \
     if :: outcome = ANSWERED :: faults > 0 -> faults--; outcome = NO_ANSWER fi \
  :: faults > 0 -> faults--; outcome = NO_ANSWER \
  :: !up[cell] -> outcome = NO_ANSWER \
  fi

/* The home cell's half messages come first, with the name of the other cell: a check finds both. */
inline store_home()
{
  if
  :: op[HOME] == NONE -> half[HOME] = true
  :: else
  fi
}

inline store_other()
{
  if
  :: op[OTHER] == NONE -> half[OTHER] = true
  :: else
  fi
}

inline decide_home(v)
{
  if
#ifdef BROKEN_DECIDED_WITHOUT_GUARD
  :: half[HOME] || op[HOME] != NONE ->
#else
  :: half[HOME] && op[HOME] == NONE ->
#endif
     op[HOME] = v; half[HOME] = false;
     visible[HOME] = visible[HOME] + (v == COMMITTED -> 1 : 0);
#ifdef BROKEN_RELEASE_NOT_RECORDED
     to_release = (v == ROLLED_BACK)
#else
     to_release = true
#endif
  :: else
  fi
}

/* In the other cell the verdict is recorded, too: a release that is repeated does nothing. */
inline release_other()
{
  if
#ifdef BROKEN_RELEASED_TWICE
  :: true ->
#else
  :: op[OTHER] == NONE ->
#endif
     assert(op[HOME] != COMMITTED || half[OTHER] || op[OTHER] != NONE);   /* prepared in both */
     visible[OTHER] = visible[OTHER] + (op[HOME] == COMMITTED -> 1 : 0);
     op[OTHER] = op[HOME]; half[OTHER] = false
  :: else
  fi
}

inline decide_other_first(v)
{
  if
  :: half[OTHER] && op[OTHER] == NONE ->
     op[OTHER] = v; half[OTHER] = false; visible[OTHER] = visible[OTHER] + (v == COMMITTED -> 1 : 0)
  :: else
  fi
}

proctype Broker()
{
  mtype wanted = NONE, outcome = ANSWERED;

end_idle:
  atomic {
    if
    :: asked_prepare > 0 -> asked_prepare--; goto prepare
    :: asked_commit > 0 -> asked_commit--; wanted = COMMITTED; goto decide
    :: asked_rollback > 0 -> asked_rollback--; wanted = ROLLED_BACK; goto decide
    fi }

prepare:
  atomic {
    transact(HOME, store_home());
    if
    :: outcome != ANSWERED -> goto finished              /* the producer repeats it, or gives up */
    :: outcome == ANSWERED
    fi }
#ifdef BROKEN_ACK_BEFORE_BOTH
  told_prepared = true;
#endif
  atomic {
    if
    :: transact(OTHER, store_other())
    :: faults > 0 -> faults--; goto finished             /* it crashes */
    fi;
    if
    :: outcome == ANSWERED -> told_prepared = true
    :: outcome != ANSWERED
    fi;
    goto finished }

decide:
#ifdef BROKEN_OTHER_CELL_FIRST
  atomic {
    transact(OTHER, decide_other_first(wanted));
    if
    :: outcome != ANSWERED -> goto finished
    :: outcome == ANSWERED
    fi }
#endif
  atomic {
    transact(HOME, decide_home(wanted));
    if
    :: outcome == ANSWERED && wanted == COMMITTED && op[HOME] == COMMITTED -> told_committed = true
    :: else
    fi }
finished:
  atomic { wanted = NONE; outcome = ANSWERED; goto end_idle }
}

/* On every broker; in each cell it finds what the home cell recorded. */
proctype Releaser()
{
  mtype outcome = ANSWERED;
end:
  do
  :: atomic { to_release && up[HOME] && up[OTHER] ->
       transact(OTHER, release_other()) }
     if
     :: atomic { outcome == ANSWERED ->
          transact(HOME, to_release = false) }
     :: outcome != ANSWERED
     :: atomic { faults > 0 -> faults-- }                /* it crashes in between */
     fi;
     outcome = ANSWERED
  od
}

proctype Cell(byte c)
{
end:
  do
  :: atomic { up[c] && faults > 0 -> faults--; up[c] = false }
  :: atomic { !up[c] -> up[c] = true }                   /* it comes back */
  od
}

proctype Producer()
{
  byte left = RESENDS;
  ask(asked_prepare);
  do
  :: atomic { told_prepared -> prepare_acknowledged = true; break }
  :: atomic { left > 0 -> left--; ask(asked_prepare) }
  :: goto gone
  od;
  atomic {
    if
    :: local_outcome == UNDECIDED -> local_outcome = COMMITTED
    :: local_outcome == UNDECIDED -> local_outcome = ROLLED_BACK
    :: local_outcome != UNDECIDED
    fi;
    left = RESENDS }
give_verdict:
  if
  :: atomic { local_outcome == COMMITTED -> ask(asked_commit) }
  :: atomic { local_outcome == ROLLED_BACK -> ask(asked_rollback) }
  :: goto gone
  fi;
  do
  :: atomic { told_committed -> assert(op[HOME] == COMMITTED && half[HOME] == false); goto gone }
  :: atomic { left > 0 -> left--; goto give_verdict }
  :: goto gone
  od;
gone:
  left = 0
}

/* The home cell's brokers check as ever; the last check is answered here, so that each run ends decided. */
proctype Checker()
{
end:
  do
  :: atomic { half[HOME] && op[HOME] == NONE && up[HOME] && asked_commit + asked_rollback == 0 ->
       if
       :: local_outcome == COMMITTED -> ask(asked_commit)
       :: local_outcome == ROLLED_BACK -> ask(asked_rollback)
       :: local_outcome == UNDECIDED -> local_outcome = ROLLED_BACK; ask(asked_rollback)
       fi }
  od
}

proctype Quiet()
{
  timeout ->
  assert(up[HOME] && up[OTHER]);
  assert(!half[HOME] && !half[OTHER]);
  assert(!to_release);
  assert(!prepare_acknowledged || op[HOME] != NONE);
  assert(op[HOME] != COMMITTED || (visible[HOME] == 1 && visible[OTHER] == 1));   /* whole in the end */
  assert(op[HOME] != ROLLED_BACK || visible[HOME] + visible[OTHER] == 0)
}

init {
  atomic {
    run Broker(); run Broker(); run Releaser(); run Cell(HOME); run Cell(OTHER); run Producer(); run Checker(); run Quiet()
  }
}
