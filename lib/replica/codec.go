package replica

import (
	"slices"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Bounds of what is decoded.
const (
	membersMax = 64 // of a group, those that learn included
	nameMax    = 255
	entryForm  = 1 // the version of entries
)

// command is one of an entry.
type command struct {
	Session
	data []byte
}

// entry is what the data of a log's entry holds: the commands that one leader had at one moment.
type entry struct {
	origin   uint64 // the process that proposed it
	batch    uint64 // which of its entries; origin and batch find who waits for the results
	commands []command
}

func (e *entry) code(c *sigmap.Coder) {
	form := uint8(entryForm)
	if c.U8(&form); form != entryForm {
		c.Fail("an entry of the log has a form that this program does not know")
	}
	c.U64(&e.origin)
	c.U64(&e.batch)
	sigmap.List(c, &e.commands, commandCost, func(x *command) {
		c.U64(&x.Client)
		c.U64(&x.Seq)
		c.Data(&x.data)
	})
}

// commandCost is what a command takes in an entry beside its data.
const commandCost = 20

// change is the context of a change of members.
type change struct {
	token uint64 // of who waits for it
	names map[uint64]string
}

func (x *change) code(c *sigmap.Coder) {
	c.U64(&x.token)
	codeNames(c, &x.names)
}

// codeNames codes members' names, in the order of their ids.
func codeNames(c *sigmap.Coder, names *map[uint64]string) {
	var all []Peer
	for id, name := range *names {
		all = append(all, Peer{id, name})
	}
	slices.SortFunc(all, func(a, b Peer) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	sigmap.List(c, &all, 10, func(p *Peer) {
		c.U64(&p.ID)
		c.Str(&p.Name)
	})
	if !c.Decoding() {
		return
	}
	*names = make(map[uint64]string, len(all))
	for _, p := range all {
		(*names)[p.ID] = p.Name
	}
	if len(*names) != len(all) || checkMembers("replica", *names) != nil && len(all) > 0 {
		c.Fail("the list of members makes no sense")
	}
}

// encode gives the bytes of what code codes.
func encode(code func(*sigmap.Coder), size int) ([]byte, error) {
	c := sigmap.NewEncoder(make([]byte, 0, size))
	code(c)
	return c.Bytes(), c.Finish()
}

// decode reads what encode made.
func decode(b []byte, code func(*sigmap.Coder)) error {
	c := sigmap.NewDecoder(b)
	code(c)
	return c.Finish()
}

// checkMembers refuses members that no group can have.
func checkMembers(op string, members map[uint64]string) error {
	if len(members) == 0 || len(members) > membersMax {
		return sigma.Errorf(op, sigma.KindInvalid, "a group has 1 to %d members, not %d", membersMax, len(members))
	}
	for id, name := range members {
		if id == 0 || id >= 1<<63 {
			return sigma.Errorf(op, sigma.KindInvalid, "a member's id is %d; ids are 1 to 2^63-1", id)
		}
		if name == "" || len(name) > nameMax {
			return sigma.Errorf(op, sigma.KindInvalid, "the name of member %d has %d bytes; names have 1 to %d", id,
				len(name), nameMax)
		}
	}
	return nil
}
