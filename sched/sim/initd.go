package sim

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sched/initd"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
)

// What initd.Runner and kernel wait for.
const (
	initLook  = 250 * time.Millisecond
	initRetry = 500 * time.Millisecond
	findMax   = 3 * time.Second
)

// initLeader is one leadership of initd: initd.Runner's turns, with messages that take time and get
// lost. A former one goes on until it is refused.
type initLeader struct {
	s     *Sim
	m     *machine
	boot  uint64
	life  sigma.Life
	epoch sigma.Epoch
	core  *initd.Core
	list  bool // the records are to be listed
	over  bool
	turn  int  // of its loop
	rests bool // until the next turn
}

func (l *initLeader) alive() bool {
	return !l.over && l.m.up && l.m.boot == l.boot && l.m.life == l.life
}

// later does something if it still leads, as far as it knows.
func (l *initLeader) later(d time.Duration, do func()) {
	l.s.after(d, func() {
		if l.alive() {
			do()
		}
	})
}

// admits says whether it may act at a place where an epoch was heard of, which hears of its own
// then.
func (l *initLeader) admits(heard *sigma.Epoch) bool {
	if *heard > l.epoch {
		return false
	}
	*heard = l.epoch
	return true
}

// write has something done at the names. Unless it is known to have been done, then is told that it
// was not.
func (l *initLeader) write(do func() bool, then func(done bool)) {
	s := l.s
	s.after(s.delay(), func() {
		if !l.admits(&s.initd.fence) {
			l.later(s.delay(), func() { l.over = true })
			return
		}
		done := !s.lost() && do()
		if s.lost() {
			done = false // it may have been done
		}
		l.later(s.delay(), func() { then(done) })
	})
}

// news has it list the records.
func (l *initLeader) news() {
	if l.list = true; l.rests {
		l.pass()
	}
}

// pass is a turn.
func (l *initLeader) pass() {
	l.turn++
	l.rests = false
	rest := func() { l.do(l.core.Step(l.m.clock(), initd.Ticked{}), l.rest) }
	if !l.list && !l.core.Stale() {
		l.look(rest)
		return
	}
	l.list = false
	var all map[initd.Key]initd.Versioned
	l.write(func() bool { all = maps.Clone(l.s.initd.files); return true }, func(done bool) {
		if !done {
			l.list = true
			l.again(initRetry)
			return
		}
		l.do(l.core.Step(l.m.clock(), initd.Listed{Records: all}), func() { l.look(rest) })
	})
}

// rest is until there is something to do.
func (l *initLeader) rest() {
	wait := time.Duration(-1)
	if at := l.core.Wakes(); !at.IsZero() {
		wait = max(0, at.Sub(l.m.clock()))
	}
	if len(l.core.Watched()) > 0 && (wait < 0 || wait > initLook) {
		wait = initLook
	}
	switch {
	case l.list:
		wait = 0
	case l.core.Stale():
		wait = initRetry
	}
	l.again(wait)
}

func (l *initLeader) again(wait time.Duration) {
	l.rests = true
	turn := l.turn
	if wait >= 0 {
		l.later(wait, func() {
			if l.turn == turn {
				l.pass()
			}
		})
	}
}

// do carries out effects and what they lead to, one after the other.
func (l *initLeader) do(fs []initd.Effect, then func()) {
	if len(fs) == 0 {
		then()
		return
	}
	next := func(e initd.Event) {
		rest := slices.Clone(fs[1:])
		if e != nil {
			rest = append(rest, l.core.Step(l.m.clock(), e)...)
		}
		l.do(rest, then)
	}
	s, in := l.s, l.s.initd
	switch f := fs[0].(type) {
	case initd.Save:
		var version sigma.Version
		l.write(func() (ok bool) { version, ok = in.save(f.Key, f.Versioned); return ok }, func(done bool) {
			if !done {
				next(initd.Dropped{Key: f.Key})
				return
			}
			next(initd.Saved{Key: f.Key, Version: version})
		})
	case initd.Forget:
		l.write(func() bool {
			is := in.files[f.Key].Version == f.Version
			if is {
				delete(in.files, f.Key)
			}
			return is
		}, func(done bool) {
			if !done {
				next(initd.Dropped{Key: f.Key})
				return
			}
			next(initd.Forgotten{Key: f.Key})
		})
	case initd.Spawn:
		l.later(s.delay(), func() { // at its own machine
			if l.over = !l.admits(&l.m.initEpoch); l.over {
				return
			}
			if s.faulty && s.r.IntN(20) == 0 {
				l.later(s.delay(), func() {
					next(initd.Refused{Key: f.Key, Proc: f.Proc, Err: sigma.Errorf("sim", sigma.KindBusy,
						"the realm has too many procs")})
				})
				return
			}
			if l.m.core.Find(f.Proc) == nil {
				in.spawn(l.m, f.Key, f.Proc)
			}
			l.later(s.delay(), func() { next(nil) })
		})
	case initd.Stop:
		for _, m := range s.machines {
			s.after(s.delay(), func() {
				if p := m.core.Find(f.Proc); m.up && p != nil && !p.Ended() && !p.Away() && !s.lost() {
					m.step(schedd.Evicted{ID: f.Proc, Grace: initd.StopGrace})
				}
			})
		}
		l.later(2*s.delay(), func() { next(nil) })
	}
}

// look sees what became of the procs that are watched, here and at all machines that are not known
// to be lost.
func (l *initLeader) look(then func()) {
	s, watched := l.s, l.core.Watched()
	keys := slices.SortedFunc(maps.Keys(watched), byName)
	if len(keys) == 0 {
		then()
		return
	}
	l.later(s.delay(), func() {
		if l.over = !l.admits(&l.m.initEpoch); l.over {
			return
		}
		ss := make([]initd.Seen, len(keys))
		var far []int
		for i, k := range keys {
			var home bool
			if ss[i], home = initd.SeenAt(l.m.core, initd.Question{Realm: k.Realm, Proc: watched[k]},
				l.m.clock()); !home {
				far = append(far, i)
			}
		}
		l.lookFar(far, func(i int) initd.Question {
			return initd.Question{Realm: keys[i].Realm, Proc: watched[keys[i]]}
		}, ss, func() {
			l.see(keys, watched, ss, then)
		})
	})
}

// see tells the core what was seen.
func (l *initLeader) see(keys []initd.Key, of map[initd.Key]sigma.ProcID, ss []initd.Seen, then func()) {
	if len(keys) == 0 {
		then()
		return
	}
	saw := initd.Saw{Key: keys[0], Proc: of[keys[0]], Sight: ss[0].Sight, Ran: ss[0].Ran, Status: ss[0].Status}
	l.do(l.core.Step(l.m.clock(), saw), func() { l.see(keys[1:], of, ss[1:], then) })
}

// lookFar asks the other machines for those of ss that are in far, as kernel does.
func (l *initLeader) lookFar(far []int, question func(int) initd.Question, ss []initd.Seen, then func()) {
	s := l.s
	others := slices.DeleteFunc(slices.Clone(s.machines), func(m *machine) bool {
		return m == l.m || l.m.core.Over(m.life)
	})
	left, over := len(others), false
	end := func() {
		if over {
			return
		}
		over = true
		for _, i := range far {
			if ss[i].Sight == initd.Gone && left > 0 {
				ss[i].Sight = initd.Unsure
			}
		}
		then()
	}
	if len(far) == 0 || left == 0 {
		end()
		return
	}
	l.later(findMax, end)
	for _, m := range others {
		life := m.life
		s.after(s.delay(), func() {
			if s.lost() || !m.up || m.life != life {
				return
			}
			admitted := l.admits(&m.initEpoch)
			theirs := make([]initd.Seen, len(far))
			for n, i := range far {
				theirs[n], _ = initd.SeenAt(m.core, question(i), m.clock())
			}
			if s.lost() {
				return
			}
			l.later(s.delay(), func() {
				if over {
					return
				}
				if l.over = !admitted; l.over {
					return
				}
				for n, i := range far {
					ss[i] = initd.Better(ss[i], theirs[n])
				}
				if left--; left == 0 {
					end()
				}
			})
		})
	}
}

func byName(a, b initd.Key) int { return cmp.Compare(a.Name, b.Name) }
