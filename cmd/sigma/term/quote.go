package term

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

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
