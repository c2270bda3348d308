package sigma

import "fmt"

// Rights say what may be done with the files of one entry of a view. Each text form includes the
// one before.
type Rights uint8

// The rights. A view has an entry with RightsNone to hide what another entry would show.
const (
	RightRead  Rights = 1 << iota // walk, look, read, watch; dial a stream endpoint that was read
	RightCall                     // call files that answer calls
	RightWrite                    // make, change, rename and remove

	RightsNone Rights = 0
	RightsRead        = RightRead
	RightsCall        = RightRead | RightCall
	RightsAll         = RightRead | RightCall | RightWrite
)

func (r Rights) String() string {
	switch r {
	case RightsNone:
		return "none"
	case RightsRead:
		return "ro"
	case RightsCall:
		return "rc"
	case RightsAll:
		return "rw"
	}
	return fmt.Sprintf("rights(%d)", uint8(r))
}

// Check returns a KindInvalid error for rights that String has no word for.
func (r Rights) Check() error {
	if r == RightsNone || r == RightsRead || r == RightsCall || r == RightsAll {
		return nil
	}
	return Errorf("sigma.Rights.Check", KindInvalid, "%v are no rights of a view", r)
}

// ParseRights reads what String prints.
func ParseRights(s string) (Rights, error) {
	for _, r := range []Rights{RightsNone, RightsRead, RightsCall, RightsAll} {
		if s == r.String() {
			return r, nil
		}
	}
	return 0, &Error{Op: "sigma.ParseRights", Kind: KindInvalid, Msg: fmt.Sprintf("no rights %.20q", s),
		Hint: "ro: read; rc: read and call; rw: all; none: hide"}
}

// ViewEntry lets a proc see one thing (architecture §6): what the spawner has at Target, at Path.
// The deepest entry at or above a path decides about it.
type ViewEntry struct {
	Path   string
	Target string // a path of the spawner's; that there is something is not asked
	Rights Rights // at most the spawner's own
}

// Limits of a view.
const (
	ViewMax      = 64       // entries, with those that come with a target that the spawner sees by entries of its own
	ViewBytesMax = 16 << 10 // bytes of all paths and targets together
)

// checkView returns an error that names the first entry that is wrong.
func checkView(view []ViewEntry) error {
	const op = "sigma.Descriptor.Check"
	if len(view) > ViewMax {
		return Errorf(op, KindTooBig, "a view of %d entries; %d are allowed", len(view), ViewMax)
	}
	total := 0
	for _, e := range view {
		names, err := ParsePath(e.Path)
		if err != nil {
			return Wrap(op, e.Path, err)
		}
		target, err := ParsePath(e.Target)
		if err != nil {
			return Wrap(op, e.Target, err)
		}
		if err := e.Rights.Check(); err != nil {
			return Wrap(op, e.Path, err)
		}
		if len(names) > 0 && (names[0] == NameSys || names[0] == NameProc && (len(names) > 1 || len(target) != 1 ||
			target[0] != NameProc)) {
			return &Error{Op: op, Path: e.Path, Kind: KindInvalid,
				Msg:  "every view has this place, as the system makes it",
				Hint: "/proc can be an entry whose target is /proc"}
		}
		if len(target) > 0 && target[0] == NameSys {
			return &Error{Op: op, Path: e.Path, Kind: KindPermission,
				Msg:  "the target " + clip(e.Target) + " is the system's",
				Hint: "a proc has what it needs of /sys in any view"}
		}
		total += len(e.Path) + len(e.Target)
	}
	if total > ViewBytesMax {
		return Errorf(op, KindTooBig, "the paths of a view have %d bytes, %d are allowed", total, ViewBytesMax)
	}
	return nil
}
