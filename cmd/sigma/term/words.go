// Package term is how text gets to a person's terminal and into pipes: names without control
// characters, quoted where a shell needs it; tables, progress and whole screens.
//
// It knows no command and no flag. What tenants chose goes through NewWords or Printable. What
// files and procs hold goes past them, by Raw.
package term

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// What sigma prints has names and messages in it that tenants chose. All of it goes through a
// words, so that no control character of theirs reaches a terminal. Only what files and procs hold
// goes around it, and the pictures that sigma draws itself: see raw.

// words is a writer that takes lines of text, or of JSON, and passes on what can be printed.
type words struct {
	json *bool // JSON is written: the flag --json, which is parsed after the writer is made
	to   io.Writer
}

// NewWords makes a writer of words before to.
func NewWords(to io.Writer, json *bool) io.Writer { return &words{json, Raw(to)} }

// Write writes whole characters.
func (w *words) Write(p []byte) (int, error) {
	text := string(p)
	if strings.IndexFunc(text, func(r rune) bool { return !Passes(r) }) >= 0 || !utf8.ValidString(text) {
		text = w.clean(text)
	}
	_, err := io.WriteString(w.to, text)
	return len(p), err
}

// clean replaces what cannot be printed, in JSON by escapes that mean the same.
func (w *words) clean(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case Passes(r):
			b.WriteRune(r)
		case !*w.json:
			b.WriteByte('?')
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// Passes says whether a character is printed, or moves the cursor only to where lines and tables go
// on.
func Passes(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) }

// Raw is where a words leads. For what files and procs hold, which goes out as it is, and for what
// moves the cursor.
func Raw(w io.Writer) io.Writer {
	if to, ok := w.(*words); ok {
		return to.to
	}
	return w
}

// Printable replaces what is no printable character, also ends of lines, so that a tenant's text
// stays one line.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
}

// Harmless says whether s is text without control characters.
func Harmless(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 && utf8.ValidString(s)
}

// NeedsQuotes says whether a shell would see more in s than a word.
func NeedsQuotes(s string) bool {
	return s == "" || strings.ContainsAny(s, " !\"$&'()*;<=>?[\\]^`{|}") || strings.ContainsAny(s[:1], "~#") ||
		!Harmless(s)
}

// ShellQuoted writes s so that a shell reads it as one word: 'a b', "it's", 'a'$'\n”b'.
func ShellQuoted(s string) string {
	if Harmless(s) {
		if strings.IndexByte(s, '\'') >= 0 && !strings.ContainsAny(s, "\"$`\\!") {
			return `"` + s + `"`
		}
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var b strings.Builder
	plain := ""
	flush := func() {
		if plain != "" {
			b.WriteString("'" + strings.ReplaceAll(plain, "'", `'\''`) + "'")
			plain = ""
		}
	}
	escaped := ""
	escape := func() {
		if escaped != "" {
			b.WriteString("$'" + escaped + "'")
			escaped = ""
		}
	}
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r != utf8.RuneError && unicode.IsPrint(r) {
			escape()
			plain += s[:n]
		} else {
			flush()
			for _, c := range []byte(s[:n]) {
				escaped += escapedByte(c)
			}
		}
		s = s[n:]
	}
	flush()
	escape()
	return b.String()
}

func escapedByte(c byte) string {
	if i := strings.IndexByte("\a\b\t\n\v\f\r", c); i >= 0 {
		return `\` + "abtnvfr"[i:i+1]
	}
	return fmt.Sprintf(`\%03o`, c)
}
