package initd

import (
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Methods of /sys/init that are the leader's. They carry its epoch: a machine that has heard of a
// newer one answers KindStale.
var (
	// CallLook says what became of procs, on all machines, each of which knows the epoch from then
	// on.
	CallLook = sigmap.Method[Look, []Seen]{Name: "look", Request: CodeLook, Reply: CodeSeen}
	// CallSpawn makes a proc of that id.
	CallSpawn = sigmap.Method[Spawning, sigmap.None]{Name: "spawn", Request: codeSpawning}
	// CallStop asks it to go, and kills it if it does not. Its descriptor is empty.
	CallStop = sigmap.Method[Spawning, sigmap.None]{Name: "stop", Request: codeSpawning}
)

// LookMax questions are in one look, whose answer fits a message.
const LookMax = 128

// Question asks for a proc.
type Question struct {
	Realm sigma.RealmID
	Proc  sigma.ProcID
}

// Seen is the answer.
type Seen struct {
	Sight  Sight
	Ran    time.Duration // since the proc left the queue, to its end if it has ended
	Status sigma.Status  // if it has ended; without Data
}

// Look is the payload of look.
type Look struct {
	Epoch     sigma.Epoch
	Questions []Question
}

// CodeLook is its layout.
func CodeLook(c *sigmap.Coder, l *Look) {
	c.U64((*uint64)(&l.Epoch))
	n := len(l.Questions)
	if c.Count(&n, 4); n > LookMax {
		c.Fail("too many questions in one look")
		return
	}
	if c.Decoding() {
		l.Questions = make([]Question, n)
	}
	for i := range l.Questions {
		c.RealmID(&l.Questions[i].Realm)
		c.ProcID(&l.Questions[i].Proc)
	}
}

// CodeSeen is the answer to look.
func CodeSeen(c *sigmap.Coder, ss *[]Seen) {
	n := len(*ss)
	if c.Count(&n, 22); n > LookMax {
		c.Fail("too many answers to one look")
		return
	}
	if c.Decoding() {
		*ss = make([]Seen, n)
	}
	for i := range *ss {
		c.U8((*uint8)(&(*ss)[i].Sight))
		c.Duration(&(*ss)[i].Ran)
		c.Status(&(*ss)[i].Status)
	}
}

// Spawning is the payload of spawn.
type Spawning struct {
	Epoch      sigma.Epoch
	Realm      sigma.RealmID
	Proc       sigma.ProcID
	Descriptor sigma.Descriptor
}

func codeSpawning(c *sigmap.Coder, s *Spawning) {
	c.U64((*uint64)(&s.Epoch))
	c.RealmID(&s.Realm)
	c.ProcID(&s.Proc)
	c.Descriptor(&s.Descriptor)
}
