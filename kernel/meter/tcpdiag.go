package meter

import (
	"encoding/binary"

	"sigmaos.dev/sigma"
)

// Layout of the messages (linux/netlink.h, inet_diag.h, tcp.h). Package netlink decodes only
// answers to its own questions.
const (
	diagHead    = 16 // struct nlmsghdr
	diagCookie  = diagHead + 44
	diagAttrs   = diagHead + 72
	diagType    = 20 // SOCK_DIAG_BY_FAMILY
	diagInfo    = 2  // INET_DIAG_INFO
	infoAcked   = 120
	infoAtLeast = infoAcked + 16
	// EndMost is the longest message.
	EndMost = 16 << 10
)

// End is the end of a TCP connection.
type End struct{ Cookie, Sent, Received uint64 }

// ParseEnd decodes a message.
func ParseEnd(b []byte) (e End, err error) {
	const op = "kernel.parseTCPEnd"
	if len(b) < diagAttrs || binary.NativeEndian.Uint16(b[4:]) != diagType {
		return e, sigma.Errorf(op, sigma.KindInvalid, "no message about a socket")
	}
	if n := int(binary.NativeEndian.Uint32(b)); n >= diagAttrs && n < len(b) {
		b = b[:n]
	}
	e.Cookie = binary.NativeEndian.Uint64(b[diagCookie:])
	for at := diagAttrs; at+4 <= len(b); {
		n, kind := int(binary.NativeEndian.Uint16(b[at:])), binary.NativeEndian.Uint16(b[at+2:])
		if n < 4 || at+n > len(b) {
			break
		}
		if kind == diagInfo && n-4 >= infoAtLeast {
			info := b[at+4 : at+n]
			e.Sent, e.Received = binary.NativeEndian.Uint64(info[infoAcked:]),
				binary.NativeEndian.Uint64(info[infoAcked+8:])
			return e, nil
		}
		at += (n + 3) &^ 3
	}
	return e, sigma.Errorf(op, sigma.KindInvalid, "a message about a socket does not say what it carried")
}
