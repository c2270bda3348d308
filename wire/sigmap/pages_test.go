package sigmap

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The pages of messages, docs/reference/messages: one for each request with its reply, and one for
// each reply that has no request of its own. Their layouts are those of the tables of
// docs/reference/protocol.md, their examples are test vectors, taken apart by these layouts.

const (
	pagesDir  = "../../docs/reference/messages"
	protocol  = "../../docs/reference/protocol.md"
	madeBegin = "<!-- made by: go test ./wire/sigmap -run TestPages -rewrite -->\n"
	madeEnd   = "<!-- end -->\n"
)

// Goal: every message has a page that says what the protocol and the codec say. A new message has
// to be in a table of the protocol, among the vectors, and on a page.
func TestPages(t *testing.T) {
	layouts := readLayouts(t)
	examples := map[string][]byte{}
	for _, v := range readVectors(t) {
		if v.message() {
			examples[v.name] = v.bytes
		}
	}
	pages := map[string]bool{"README.md": true}
	index := madeBegin + "| type | message | page |\n|---:|---|---|\n"
	for i := range 256 {
		typ := Type(i)
		if New(typ) == nil {
			continue
		}
		name := typ.String()
		page := name
		if request := "T" + name[1:]; name[0] == 'R' && New(typ-1) != nil && (typ-1).String() == request {
			page = request
		}
		index += fmt.Sprintf("| %d | `%s` | [%s](%s.md) |\n", i, name, page, page)
		if page != name {
			continue
		}
		pages[page+".md"] = true
		messages := []Type{typ}
		if name[0] == 'T' && New(typ+1) != nil && (typ+1).String() == "R"+name[1:] {
			messages = append(messages, typ+1)
		}
		synopsis, example := madeBegin+"## SYNOPSIS\n\n", madeBegin+"## EXAMPLE\n\n"
		for j, m := range messages {
			fields, ok := layouts[m.String()]
			if !ok {
				t.Errorf("the tables of %s have no line for %d, `%s`", protocol, m, m)
			}
			synopsis += fmt.Sprintf("    size[4] type[1]=%d tag[2] %s\n", m, fields)
			text, err := takeApart(layouts, examples[m.String()])
			if err != nil {
				t.Errorf("the test vector of %s is not as %s says, %q: %v", m, protocol, fields, err)
			}
			if j > 0 {
				example += "\n"
			}
			example += fmt.Sprintf("`%s`:\n\n```text\n%s```\n", m, text)
		}
		title := page
		if len(messages) > 1 {
			title += ", " + messages[1].String()
		}
		checkPage(t, page+".md", "# "+title+"\n\n"+madeBegin+madeEnd+"\n## DESCRIPTION\n\n"+madeBegin+madeEnd,
			synopsis+"\n"+madeEnd, example+madeEnd)
	}
	checkPage(t, "README.md", "# Messages\n\n"+madeBegin+madeEnd, index+madeEnd)
	files, err := filepath.Glob(filepath.Join(pagesDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !pages[filepath.Base(f)] {
			t.Errorf("%s is the page of no message", f)
		}
	}
}

// checkPage compares, or writes, the made parts of a page.
func checkPage(t *testing.T, name, fresh string, created ...string) {
	file := filepath.Join(pagesDir, name)
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) && *rewrite {
		b, err = []byte(fresh), nil
	}
	if err != nil {
		t.Errorf("%v\nbegin it with: go test ./wire/sigmap -run TestPages -rewrite; then describe the message", err)
		return
	}
	want, rest := "", string(b)
	for _, part := range created {
		before, after, ok := strings.Cut(rest, madeBegin)
		_, after, ok2 := strings.Cut(after, madeEnd)
		if !ok || !ok2 {
			t.Errorf("%s lacks the lines\n%s%s", file, madeBegin, madeEnd)
			return
		}
		want, rest = want+before+part, after
	}
	want += rest
	if *rewrite {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(b) {
		t.Errorf("%s is not as the protocol is; write it anew with: go test ./wire/sigmap -run TestPages -rewrite", file)
	}
	if strings.Contains(want, "## DESCRIPTION\n\n<!--") {
		t.Errorf("%s has no description", file)
	}
}

var tableLine = regexp.MustCompile("(?m)^\\| (\\d+) \\| `([TR]\\w+)` \\|(.*)\\|$")

// readLayouts gives the fields of each message as the protocol writes them.
func readLayouts(t *testing.T) map[string]string {
	text, err := os.ReadFile(protocol)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range tableLine.FindAllStringSubmatch(string(text), -1) {
		n, _ := strconv.Atoi(m[1])
		if Type(n).String() != m[2] {
			t.Errorf("%s says that %d is %s; it is %s", protocol, n, m[2], Type(n))
		}
		fields, _, _ := strings.Cut(m[3], ";")
		out[m[2]] = strings.TrimSpace(fields)
	}
	return out
}

// apart takes a message apart.
type apart struct {
	layouts map[string]string
	rest    []byte
	out     strings.Builder
	last    uint64 // the integer taken last
}

func takeApart(layouts map[string]string, message []byte) (string, error) {
	a := &apart{layouts: layouts, rest: message}
	err := a.fields("size[4] type[1]")
	typ := Type(a.last)
	if err == nil {
		err = a.fields("tag[2]")
	}
	if err == nil {
		err = a.fields(layouts[typ.String()])
	}
	if err == nil && len(a.rest) > 0 {
		err = fmt.Errorf("%d bytes are left", len(a.rest))
	}
	return a.out.String(), err
}

// inner ends the layout of a message that has another in it.
const inner = ", then the fields of a message of that type"

var field = regexp.MustCompile(`^(?:(n)\*\(([^()]*)\)|(\w+)\[(\w+)\])\s*`)

func (a *apart) fields(layout string) error {
	layout, within := strings.CutSuffix(layout, inner)
	layout, _, _ = strings.Cut(layout, ",")
	for layout != "" {
		m := field.FindStringSubmatch(layout)
		if m == nil {
			return fmt.Errorf("what is %q?", layout)
		}
		layout = layout[len(m[0]):]
		if m[3] == "" {
			if err := a.field("n", "2"); err != nil {
				return err
			}
			for range a.last {
				if err := a.fields(m[2]); err != nil {
					return err
				}
			}
		} else if err := a.field(m[3], m[4]); err != nil {
			return err
		}
	}
	if within {
		return a.fields(a.layouts[Type(a.last).String()])
	}
	return nil
}

// field takes one field, whose size may be a number, s or d.
func (a *apart) field(name, size string) error {
	head := map[string]int{"s": 2, "d": 4}[size]
	n, _ := strconv.Atoi(size)
	if head > 0 {
		if len(a.rest) < head {
			return fmt.Errorf("%s[%s] reaches beyond the end", name, size)
		}
		n = head + int(number(a.rest[:head]))
	}
	if len(a.rest) < n {
		return fmt.Errorf("%s[%s] reaches beyond the end", name, size)
	}
	b := a.rest[:n]
	a.rest = a.rest[n:]
	value := ""
	switch {
	case head > 0:
		value = strconv.QuoteToASCII(string(b[head:]))
	case name == "qid" || name == "fileid":
		value = fmt.Sprintf("kind 0x%02x, version 0x%x, path 0x%x", b[0], number(b[1:5]), number(b[5:13]))
		if name == "fileid" {
			value += fmt.Sprintf(", whole version 0x%x", number(b[13:21]))
		}
	default:
		a.last = number(b)
		value = strconv.FormatUint(a.last, 10)
		if a.last >= 1<<20 {
			value = fmt.Sprintf("0x%x", a.last)
		}
		if name == "type" && New(Type(a.last)) != nil && n == 1 {
			value += ", " + Type(a.last).String()
		}
	}
	for i := 0; i == 0 || i < len(b); i += 16 {
		line := fmt.Sprintf("%-47s", fmt.Sprintf("% x", b[i:min(i+16, len(b))]))
		if i == 0 {
			line += fmt.Sprintf("  %-12s %s", name, value)
		}
		a.out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return nil
}

func number(b []byte) uint64 {
	var full [8]byte
	copy(full[:], b)
	return binary.LittleEndian.Uint64(full[:])
}
