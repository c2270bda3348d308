package remote

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"sigmaos.dev/sigma"
)

// keyMax is how many bytes a key may have in S3, our prefix included.
const keyMax = 1024

// A key is a path of escaped names. A name may have any byte but NUL and the slash, a key is UTF-8,
// and not every client or store copes with control characters. So control characters and bytes that
// are not UTF-8 are written %XX, and so is a percent sign where it would be read as such an escape.
// Every name has one key, and what no name has as its key is not shown.

// escapable says whether %XX of b is an escape.
func escapable(b byte) bool { return b < 0x20 || b >= 0x7f || b == '%' }

// escaped gives the byte that an escape at the beginning of s stands for.
func escaped(s string) (byte, bool) {
	if len(s) < 3 || s[0] != '%' {
		return 0, false
	}
	high, low := strings.IndexByte(digits, s[1]), strings.IndexByte(digits, s[2])
	if high < 0 || low < 0 {
		return 0, false
	}
	b := byte(high<<4 | low)
	return b, escapable(b)
}

const digits = "0123456789ABCDEF"

// encodeName writes a name as a part of a key.
func encodeName(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); {
		r, size := utf8.DecodeRuneInString(name[i:])
		c := name[i]
		escape := r == utf8.RuneError && size == 1 || c < 0x20 || c == 0x7f
		if c == '%' {
			_, escape = escaped(name[i:])
		}
		if escape {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
			i++
			continue
		}
		b.WriteString(name[i : i+size])
		i += size
	}
	return b.String()
}

// decodeName reads a part of a key; ok is false if it is not how any name is written.
func decodeName(part string) (name string, ok bool) {
	if strings.IndexByte(part, '%') >= 0 {
		var b strings.Builder
		for i := 0; i < len(part); {
			if c, is := escaped(part[i:]); is {
				b.WriteByte(c)
				i += 3
				continue
			}
			b.WriteByte(part[i])
			i++
		}
		name = b.String()
	} else {
		name = part
	}
	return name, sigma.CheckName(name) == nil && encodeName(name) == part
}

// join is the key of name in the directory of key dir, which ends with a slash.
func join(dir, name string) (string, error) {
	if err := sigma.CheckName(name); err != nil {
		return "", err
	}
	key := dir + encodeName(name)
	if len(key) >= keyMax { // a directory's has a slash besides
		return "", &sigma.Error{Op: "remote.join", Path: name, Kind: sigma.KindUnsupported,
			Msg:  fmt.Sprintf("its key would have more than the %d bytes that the object store takes", keyMax),
			Hint: "use shorter names, or fewer directories"}
	}
	return key, nil
}
