package sigma

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strconv"
	"strings"
)

// RealmID names a realm: 1 to 32 of a-z, 0-9 and '-', starting with a letter. The realm SystemRealm
// belongs to the provider.
type RealmID string

// Realms that exist as soon as a system is up.
const (
	SystemRealm  RealmID = "system"  // the provider's own services
	DefaultRealm RealmID = "default" // what users get who never made a realm
)

// Check returns a KindInvalid error that says what is wrong with r, or nil.
func (r RealmID) Check() error { return checkLabel("realm", string(r), 32) }

// MachineID names a machine, by the same rules as a realm (up to 63 bytes).
type MachineID string

// Check returns a KindInvalid error that says what is wrong with m, or nil.
func (m MachineID) Check() error { return checkLabel("machine", string(m), 63) }

// ProcID names a proc. It is unique over all machines and all time (80 random bits, 16 characters),
// so one ProcID never starts twice.
type ProcID string

// NewProcID returns a fresh ProcID. Safe for concurrent use.
func NewProcID() ProcID {
	var b [10]byte
	rand.Read(b[:]) // never fails (crypto/rand since Go 1.24)
	return ProcID(strings.ToLower(base32.StdEncoding.EncodeToString(b[:])))
}

// LeaseID names a lease within one realm; 0 means no lease.
type LeaseID uint64

// Version counts the changes of one file; it grows with each change. 0 means "any" in a condition.
type Version uint64

// Epoch numbers the leaders of a fenced path (000 §3.6); 0 means not fenced.
type Epoch uint64

// MilliCPU is a thousandth of a core.
type MilliCPU uint32

// Bytes is an amount of memory or data.
type Bytes uint64

// Binary multiples, as memory is counted.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
)

// String prints b with the largest binary unit that keeps it readable: "512KiB", "1.5GiB".
func (b Bytes) String() string {
	for _, u := range []struct {
		n    Bytes
		name string
	}{{GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if b >= u.n {
			return strings.TrimSuffix(strconv.FormatFloat(float64(b)/float64(u.n), 'f', 1, 64), ".0") + u.name
		}
	}
	return strconv.FormatUint(uint64(b), 10) + "B"
}

// ParseBytes reads "64", "64k", "64M", "64MiB", "1.5g" (units are binary, as docker's are; case is
// ignored).
func ParseBytes(s string) (Bytes, error) {
	t := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(strings.TrimSpace(s)), "b"), "i")
	mult := Bytes(1)
	switch {
	case strings.HasSuffix(t, "k"):
		mult = KiB
	case strings.HasSuffix(t, "m"):
		mult = MiB
	case strings.HasSuffix(t, "g"):
		mult = GiB
	case strings.HasSuffix(t, "t"):
		mult = 1 << 10 * GiB
	}
	if mult != 1 {
		t = t[:len(t)-1]
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil || !(f >= 0 && f*float64(mult) <= 1<<60) { // written so that NaN is refused
		return 0, &Error{Op: "sigma.ParseBytes", Kind: KindInvalid, Msg: fmt.Sprintf("%q is not a size", s),
			Hint: "write for example 64M or 1.5GiB"}
	}
	return Bytes(f * float64(mult)), nil
}

func checkLabel(what, s string, max int) error {
	ok := len(s) > 0 && len(s) <= max && s[0] >= 'a' && s[0] <= 'z'
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-'
	}
	if ok {
		return nil
	}
	return &Error{Op: "sigma.Check", Kind: KindInvalid, Msg: fmt.Sprintf("%.80q is not a %s name", s, what),
		Hint: fmt.Sprintf("use 1 to %d of a-z, 0-9 and -, starting with a letter", max)}
}
