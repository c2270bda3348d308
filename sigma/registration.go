package sigma

import (
	"fmt"
	"strings"
	"time"
)

// Restart says when a registered proc is started again after its end. In any case it is after a
// loss: of its machine, or of the whole system.
type Restart string

// The policies.
const (
	RestartAlways    Restart = "always"     // the default: whenever it has ended
	RestartOnFailure Restart = "on-failure" // unless it ended with status ok
)

// RegistrationsMax is how many procs of one realm can be registered; RegistrationMax the bytes of a
// descriptor of one of them, arguments and environment included.
const (
	RegistrationsMax = 256
	RegistrationMax  = 16 << 10
)

// Registration is a proc that initd keeps: one instance of it runs, as its policy says, until it is
// removed (001 §3.4; docs/reference/commands/init.md).
type Registration struct {
	Name       string // 1 to 64 bytes of a-z, A-Z, 0-9, ".", "_" and "-", beginning with a letter or digit
	Descriptor Descriptor
	Restart    Restart // "" = always
	Most       uint32  // it is started so often at most; 0 = without an end
}

// Check returns a KindInvalid or KindTooBig error that names the first field that is wrong.
func (r *Registration) Check() error {
	const op = "sigma.Registration.Check"
	if !isRegistrationName(r.Name) {
		return &Error{Op: op, Kind: KindInvalid, Msg: fmt.Sprintf("%.80q cannot be the name of a registered proc",
			r.Name), Hint: `1 to 64 of a-z, A-Z, 0-9, ".", "_" and "-", a letter or digit first`}
	}
	switch r.Restart {
	case "", RestartAlways, RestartOnFailure:
	default:
		return &Error{Op: op, Kind: KindInvalid, Msg: fmt.Sprintf("%.40q does not say when to start again",
			string(r.Restart)), Hint: "the policies are always and on-failure"}
	}
	size := len(r.Descriptor.Program)
	for _, list := range [][]string{r.Descriptor.Args, r.Descriptor.Env, r.Descriptor.Where} {
		for _, s := range list {
			size += len(s) + 5
		}
	}
	for _, v := range r.Descriptor.View {
		size += len(v.Path) + len(v.Target) + 5
	}
	if size > RegistrationMax {
		return &Error{Op: op, Kind: KindTooBig,
			Msg:  fmt.Sprintf("the descriptor has %d bytes; %d are allowed in a registration", size, RegistrationMax),
			Hint: "put long input into a file of the realm and pass its path"}
	}
	return r.Descriptor.Check()
}

func isRegistrationName(s string) bool {
	if s == "" || len(s) > 64 || strings.IndexByte("._-", s[0]) >= 0 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._-", c) >= 0) {
			return false
		}
	}
	return true
}

// Instance is one run of a registered proc.
type Instance struct {
	Proc    ProcID
	Begun   time.Time // when it was spawned; once its end was seen, when it left the queue for a machine
	Ended   time.Time // when its end was seen; zero = it was not yet
	Status  Status    // without Data
	Machine MachineID // where it was spawned
}
