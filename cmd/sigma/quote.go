package main

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What tenants named may hold any byte but / and NUL. On a terminal names are written so that a
// shell reads them back, as GNU ls does; elsewhere they are written as they are, unless they have
// control characters or are no text: a line stays a line, and nothing plays tricks on a terminal
// further on.

// shown is how a name or path is printed.
func (a *app) shown(name string) string {
	if terminalWidth(a.out) > 0 && (needsQuotes(name) || strings.HasPrefix(name, "-")) || !harmless(name) {
		return shellQuoted(name)
	}
	return name
}

// needsQuotes says whether a shell would see more in s than a word.
func needsQuotes(s string) bool {
	return s == "" || strings.ContainsAny(s, " !\"$&'()*;<=>?[\\]^`{|}") || strings.ContainsAny(s[:1], "~#") ||
		!harmless(s)
}

// shellQuoted writes s so that a shell reads it as one word: 'a b', "it's", 'a'$'\n”b'.
func shellQuoted(s string) string {
	if harmless(s) {
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
