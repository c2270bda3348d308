package meter

import (
	"time"

	"sigmaos.dev/sigma"
)

// Which realm of a name it is that something was used by. A machine that was away when a realm was
// removed has what it used on its disk, which must not become that of the next realm of the name.

// Made is when a realm was made, in Unix nanoseconds, which tells it from others of its name; 0 =
// not known.
type Made int64

func MadeAt(at time.Time) Made {
	if at.IsZero() {
		return 0
	}
	return Made(max(0, at.UnixNano()))
}

// before reports whether an hour (Unix time / 3600) was over when the realm was made.
func (m Made) before(hour int64) bool { return int64(m) >= (hour+1)*int64(time.Hour) }

// goneAfter is how long a realm must be missing in lists of all realms until what it has used is
// forgotten: a named that does not know yet that it leads no more may list those of a while ago.
const goneAfter = 10 * time.Second

// realmsThere is which realms there are, as was heard last. Not safe for concurrent use.
type realmsThere struct {
	created map[sigma.RealmID]Made // nil = nothing was heard yet
	missed  map[string]time.Time   // since when something that is kept is of none of them
}

// hear takes which realms there are. judge is then to be called for each thing that is kept, by a
// name of its own: it gives which realm of the name is there, 0 if that is not known, and says
// whether the thing is of one that is gone.
func (r *realmsThere) hear(now time.Time, there map[sigma.RealmID]Made) (judge func(thing string, realm sigma.RealmID,
	of Made) (is Made, over bool)) {
	before := r.missed
	r.created, r.missed = there, map[string]time.Time{}
	return func(thing string, realm sigma.RealmID, of Made) (Made, bool) {
		is, known := there[realm]
		switch {
		case realm == sigma.SystemRealm, known && (is == of || is == 0 || of == 0):
			return is, false
		case is > of:
			return is, true
		}
		since, noted := before[thing] // it is not there, or one that was made earlier is
		if !noted {
			since = now
		}
		r.missed[thing] = since
		return is, now.Sub(since) >= goneAfter
	}
}

// notHeard is the error for a realm that asks what it used before this machine knows whether it was
// this realm or another of its name.
func notHeard() error {
	return &sigma.Error{Op: "kernel.usage", Kind: sigma.KindUnavailable,
		Msg:  "the machine was started just now, and has not heard yet which realms there are",
		Hint: "try again in some seconds; if it stays so, sigma status shows how named is"}
}
