package names

// front is where reads and acknowledged mutations pass, for who keeps what was read. It keeps nothing yet.
//
// The rules: a read comes to it before it is sent, and its answer before the caller has it; of a mutation it hears before the caller does. number of an attachment tells
// which session an answer came through: what is known of one session does not hold for the next until it was checked. A request of a context with a trail (kernel/resolve.go), one that must be linearizable, or one with a fence, is
// always sent. A File that was made from what is kept need not be bound to a session: bind finds it when something is sent.
type front struct{}

// attached hears of each new session before anything is asked through it. Realm.mu is held.
func (*front) attached(*attachment) {}

// changed hears of each mutation that was acknowledged, before its caller does: the directories and files concerned by their ids, 0 for what is not known, and names in them. An error other than
// of a check may mean that it took effect.
func (*front) changed(change) {}

// change is one mutation.
type change struct {
	op      string // create, mkdir, symlink, put, write, truncate, setstat, remove, rename, lease, revoke
	dir     uint64 // in which a name was concerned; of put: where the walk began
	names   []string
	id      uint64 // of the file itself
	newDir  uint64 // of a rename
	newName string
	err     error
}
