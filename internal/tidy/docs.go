package tidy

import (
	"go/ast"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
)

var (
	mdLink     = regexp.MustCompile(`\]\(<?([^)\s>]+)>?(?: "[^"]*")?\)`)
	mdCode     = regexp.MustCompile("`[^`]*`")
	makeTarget = regexp.MustCompile(`^([a-z][a-z-]*):`)
	makeCall   = regexp.MustCompile(`(?:^|[;&|]\s*|sudo )make ([a-z][a-z-]*)`)
	sigmaCall  = regexp.MustCompile(`(?:^|[\s;&|(])(?:bin/)?sigma ([a-z][a-z-]*)`)
)

// CheckLinks finds relative links of Markdown files that lead nowhere. Anchors and other hosts are
// not looked at.
func CheckLinks(t *Tree) []Finding {
	var found []Finding
	for _, name := range t.names(".md") {
		for i, line := range prose(t.Texts[name]) {
			for _, m := range mdLink.FindAllStringSubmatch(mdCode.ReplaceAllString(line, ""), -1) {
				target, _, _ := strings.Cut(m[1], "#")
				if plain, err := url.PathUnescape(target); err == nil {
					target = plain
				}
				if target == "" || strings.Contains(target, ":") {
					continue
				}
				if _, err := fs.Stat(t.FS, path.Clean(path.Join(path.Dir(name), target))); err != nil ||
					path.IsAbs(target) {
					found = append(found,
						Finding{"link", name, i + 1,
							"the link to " + m[1] +
								" leads nowhere: links are relative to their file and stay in the repository"})
				}
			}
		}
	}
	return found
}

// prose blanks the lines within fences, so that numbers stay.
func prose(lines []string) []string {
	out, fenced := make([]string, len(lines)), false
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		} else if !fenced {
			out[i] = line
		}
	}
	return out
}

// command is a line of a fenced sh block.
type command struct {
	file string
	line int
	text string
}

// shellCommands gives the lines of fenced sh blocks.
func shellCommands(name string, lines []string) []command {
	var found []command
	fence := ""
	for i, line := range lines {
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "```") && fence == "":
			fence = text
		case strings.HasPrefix(text, "```"):
			fence = ""
		case fence == "```sh" && text != "" && text[0] != '#':
			found = append(found, command{name, i + 1, strings.TrimPrefix(text, "$ ")})
		}
	}
	return found
}

// CheckCommands finds commands in fenced sh blocks of Markdown files that do not exist: make
// targets, and nouns of sigma. A noun exists if the source of cmd/sigma has it as a string; before
// there is a cmd/sigma nothing is asked.
func CheckCommands(t *Tree) []Finding {
	targets, nouns := makeTargets(t.Texts["Makefile"]), stringsOf(t, "cmd/sigma")
	var found []Finding
	for _, name := range t.names(".md") {
		for _, c := range shellCommands(name, t.Texts[name]) {
			if m := makeCall.FindStringSubmatch(c.text); m != nil && !targets[m[1]] {
				found = append(found, Finding{"command", c.file, c.line, "make has no target " + m[1]})
			}
			if m := sigmaCall.FindStringSubmatch(c.text); m != nil && len(nouns) > 0 && !nouns[m[1]] {
				found = append(found, Finding{"command", c.file, c.line, "sigma has no command " + m[1]})
			}
		}
	}
	return found
}

func makeTargets(lines []string) map[string]bool {
	targets := map[string]bool{}
	for _, line := range lines {
		if m := makeTarget.FindStringSubmatch(line); m != nil {
			targets[m[1]] = true
		}
	}
	return targets
}

// stringsOf collects the first words of the string literals of dir and what is below.
func stringsOf(t *Tree, dir string) map[string]bool {
	words := map[string]bool{}
	t.eachFile(func(p *Package, f *File) {
		if !within(p.Dir, dir) || f.Test {
			return
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					first, _, _ := strings.Cut(s, " ") // cobra's Use: "ls [-l] PATH"
					words[first] = true
				}
			}
			return true
		})
	})
	return words
}
