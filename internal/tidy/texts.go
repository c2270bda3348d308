package tidy

import (
	"path"
	"regexp"
	"strings"
)

var (
	openTask  = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b(.*)`)
	goodTask  = regexp.MustCompile(`^\(#[0-9]+\): \S`)
	unsafeUse = regexp.MustCompile(`\bunsafe\b`)
	rustText  = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
)

// commentMarks tells how a comment begins in files whose tasks we look for.
var commentMarks = map[string]string{".go": "//", ".rs": "//", ".sh": "#", ".toml": "#", ".yml": "#", ".py": "#",
	".c": "//", ".h": "//"}

// commentMark gives the mark for a file; scripts without a suffix are known by their first line.
func commentMark(name string, lines []string) string {
	if mark, ok := commentMarks[path.Ext(name)]; ok {
		return mark
	}
	if path.Base(name) == "Makefile" || strings.HasPrefix(lines[0], "#!") {
		return "#"
	}
	return ""
}

// CheckTasks finds open tasks in comments that name no issue. A mark inside a string that looks
// like a comment is mistaken for one.
func CheckTasks(t *Tree) []Finding {
	var found []Finding
	for _, name := range t.names("") {
		mark := commentMark(name, t.Texts[name])
		if mark == "" || within(path.Dir(name), "internal/tidy") {
			continue
		}
		for i, line := range t.Texts[name] {
			_, comment, ok := strings.Cut(line, mark)
			if m := openTask.FindStringSubmatch(comment); ok && m != nil &&
				(m[1] != "TODO" || !goodTask.MatchString(m[2])) {
				found = append(found, Finding{"task", name, i + 1,
					m[1] + " without an issue is forgotten: write TODO(#issue): what and when, or do it now"})
			}
		}
	}
	return found
}

// homePath is somebody's home directory with something in it.
var homePath = regexp.MustCompile(`(?:^|[^\w.~/-])(/(?:home|Users)/[a-z][\w.-]*/|/root/\.?[\w-]+)`)

// CheckPaths finds paths and hosts of the machine something was written on: homes, and the given
// private strings (where this clone lies, a private mirror).
func CheckPaths(t *Tree, private []string) []Finding {
	var found []Finding
	for _, name := range t.names("") {
		if within(path.Dir(name), "internal/tidy") {
			continue
		}
		for i, line := range t.Texts[name] {
			hit := ""
			if m := homePath.FindStringSubmatch(line); m != nil {
				hit = m[1]
			}
			for _, p := range private {
				if strings.Contains(line, p) {
					hit = p
				}
			}
			if hit != "" {
				found = append(found, Finding{"machine-path", name, i + 1,
					"\"" + hit +
						"\" exists on one machine only: use a relative path, a variable or an invented example such " +
						"as /srv/data"})
			}
		}
	}
	return found
}

// wellKnownDirs may hold clones and be named in our files all the same.
var wellKnownDirs = []string{"/", "/tmp", "/var", "/opt", "/usr", "/srv", "/src", "/app", "/data", "/home", "/root",
	"/mnt", "/build", "/repo", "/workspace", "/go"}

// PrivateStrings tells what must not be in the files of a clone at root with that GOPROXY.
func PrivateStrings(root, goproxy string) []string {
	known := func(dir string) bool {
		for _, d := range wellKnownDirs {
			if dir == d {
				return true
			}
		}
		return false
	}
	var private []string
	if !known(root) {
		private = append(private, root+"/")
	}
	if parent := path.Dir(root); !known(parent) && path.Dir(parent) == "/" {
		private = append(private, parent+"/")
	}
	for _, p := range strings.FieldsFunc(goproxy, func(r rune) bool { return r == ',' || r == '|' }) {
		_, host, ok := strings.Cut(p, "://")
		host, _, _ = strings.Cut(host, "/")
		if ok && host != "" && host != "proxy.golang.org" {
			private = append(private, host)
		}
	}
	return private
}

// unsafeReach is how many lines of code may stand between a SAFETY comment and the unsafe it is
// about (a statement that begins before it).
const unsafeReach = 3

// CheckUnsafe finds Rust's unsafe without a SAFETY comment (or a "# Safety" section) directly
// above.
func CheckUnsafe(t *Tree) []Finding {
	var found []Finding
	for _, name := range t.names(".rs") {
		lines := t.Texts[name]
		for i, line := range lines {
			code, comment, _ := strings.Cut(rustText.ReplaceAllString(line, `""`), "//")
			trimmed := strings.TrimSpace(code)
			if !unsafeUse.MatchString(code) || strings.HasPrefix(trimmed, "#") || strings.Contains(comment, "SAFETY:") {
				continue
			}
			if !explained(lines[:i]) {
				found = append(found, Finding{"unsafe", name, i + 1,
					"unsafe without a // SAFETY: comment above it: say which rule the compiler cannot check, why it " +
						"holds, and why no safe form will do"})
			}
		}
	}
	return found
}

// explained reports whether lines end in a SAFETY comment, with at most unsafeReach lines of code
// after it.
func explained(lines []string) bool {
	for code := 0; len(lines) > 0; lines = lines[:len(lines)-1] {
		line := strings.TrimSpace(lines[len(lines)-1])
		switch {
		case strings.Contains(line, "SAFETY:") || strings.Contains(line, "# Safety"):
			return true
		case strings.HasPrefix(line, "//") || strings.HasPrefix(line, "#["):
		case code == unsafeReach || line == "":
			return false
		default:
			code++
		}
	}
	return false
}
