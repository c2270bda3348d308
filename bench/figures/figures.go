// Package figures makes the page of figures: what the benches measured last, beside the goals and
// what others reach, and whether each goal is met.
//
// It assumes result files as package bench keeps them. It takes each metric from the newest file
// that has it, so that a bench of which only a part ran again keeps its other figures. User:
// cmd/bench.
package figures

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/bench"
)

// line is a figure with the run that it is of.
type line struct {
	bench.Line
	run *bench.Result
}

// Read reads result files, the newest first.
func Read(files []string) ([]*bench.Result, error) {
	var results []*bench.Result
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		r := new(bench.Result)
		if err := json.Unmarshal(data, r); err != nil {
			return nil, fmt.Errorf("%s is no result of a bench: %w", name, err)
		}
		if r.Bench == "" || r.Time.IsZero() {
			return nil, fmt.Errorf("%s is no result of a bench: it names no bench or no time", name)
		}
		results = append(results, r)
	}
	slices.SortStableFunc(results, func(a, b *bench.Result) int { return b.Time.Compare(a.Time) })
	return results, nil
}

// Files gives the result files of a directory.
func Files(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s has no results: run a bench first, or name result files", dir)
	}
	return files, err
}

// newest gives the lines of a bench, metric by metric, each of the newest result that has it.
func newest(results []*bench.Result, name string) []line {
	from := map[string]*bench.Result{}
	of := map[string][]line{}
	var metrics []string // in the order in which they were printed
	for _, r := range results {
		if r.Bench != name {
			continue
		}
		for _, l := range r.Lines {
			if from[l.Metric] == nil {
				from[l.Metric] = r
				metrics = append(metrics, l.Metric)
			}
			if from[l.Metric] == r {
				of[l.Metric] = append(of[l.Metric], line{l, r})
			}
		}
	}
	var lines []line
	for _, m := range metrics {
		lines = append(lines, of[m]...)
	}
	return lines
}

// Page makes the page of results, which are the newest first.
func Page(results []*bench.Result, benches []bench.Bench, goals []Goal) []byte {
	p := page{goals: goals, state: make([]state, len(goals))}
	questions := map[string]string{}
	var names []string
	for _, b := range benches {
		questions[b.Name] = b.Question
		names = append(names, b.Name)
	}
	var others []string // that there are no longer
	for _, r := range results {
		if questions[r.Bench] == "" && !slices.Contains(others, r.Bench) {
			others = append(others, r.Bench)
		}
	}
	slices.Sort(others)
	for _, name := range append(names, others...) {
		if lines := newest(results, name); len(lines) > 0 {
			p.section(name, questions[name], lines)
		}
	}
	p.open()
	count := map[state]int{}
	for _, s := range p.state {
		count[s]++
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, head, len(goals), count[met], count[missed], count[open])
	out.Write(p.body.Bytes())
	return out.Bytes()
}

const head = `# Figures

What the benches measured last; ` + "`bin/bench list`" + ` names them. All arms of a bench run in turns, in one
run on one machine, so only ratios say something about another machine.

A ratio above 1 says that sigmaOS is better than the peer: a higher rate, a shorter time. It is the
median over the blocks of a run, with the least and the greatest in brackets. The goal
` + "`>= 5 x PEER`" + ` asks for a ratio of at least 5; ` + "`<= 1.4 x PEER`" + ` allows 1.4 times the peer's figure. A
goal without a peer is about the figure itself.

There are %d goals: %d are met, %d are missed, and %d have no result.

<!-- made by: bin/bench table -->
`

// state is what is known of a goal. One that several lines answer is met if it is met in all.
type state int

const (
	open state = iota
	met
	missed
)

func (s state) String() string { return [...]string{"not measured", "met", "**missed**"}[s] }

// page is a page under way; state is of the goal at the same place.
type page struct {
	goals []Goal
	state []state
	body  bytes.Buffer
}

const columns = "| metric | unit | goal | ours | peer | theirs | ratio | goal met | date | commit |\n" +
	"|---|---|---|--:|---|--:|--:|---|---|---|\n"

// section writes the table of one bench, and before it the runs that it is made from.
func (p *page) section(name, question string, lines []line) {
	fmt.Fprintf(&p.body, "\n## %s\n\n", name)
	if question != "" {
		fmt.Fprintf(&p.body, "%s%s\n\n", strings.ToUpper(question[:1]), question[1:])
	}
	var runs []*bench.Result
	for _, l := range lines {
		if !slices.Contains(runs, l.run) {
			runs = append(runs, l.run)
		}
	}
	for _, r := range runs {
		fmt.Fprintf(&p.body, "- %s\n", describe(r))
	}
	p.body.WriteString("\n" + columns)
	metric := ""
	for _, l := range lines {
		first := l.Metric != metric
		metric = l.Metric
		var texts, verdicts []string
		for i, g := range p.goals {
			if g.Bench != name || g.Metric != l.Metric || !g.about(l, first) {
				continue
			}
			s := g.judge(l)
			p.state[i] = max(p.state[i], s)
			texts, verdicts = append(texts, g.String()), append(verdicts, s.String())
		}
		ratio := optional(l.Ratio)
		if l.Lowest != nil && l.Most != nil {
			ratio += fmt.Sprintf(" (%s to %s)", number(*l.Lowest), number(*l.Most))
		}
		p.row(l.Metric, l.Unit, strings.Join(texts, "; "), number(l.Ours), l.Peer, optional(l.Theirs), ratio,
			strings.Join(verdicts, "; "), l.run.Time.UTC().Format(time.DateOnly), short(l.run.Commit))
	}
}

// open writes the goals that no line answered.
func (p *page) open() {
	if !slices.Contains(p.state, open) {
		return
	}
	p.body.WriteString("\n## Goals without a result\n\n| bench | metric | goal |\n|---|---|---|\n")
	for i, g := range p.goals {
		if p.state[i] == open {
			p.row(g.Bench, g.Metric, g.String())
		}
	}
}

func (p *page) row(cells ...string) {
	for _, c := range cells {
		p.body.WriteString("|")
		if c != "" {
			p.body.WriteString(" " + strings.ReplaceAll(c, "|", `\|`))
		}
		p.body.WriteString(" ")
	}
	p.body.WriteString("|\n")
}

// describe tells when, of what and where a run was.
func describe(r *bench.Result) string {
	text := r.Time.UTC().Format("2006-01-02 15:04 UTC") + ", commit " + short(r.Commit)
	if r.Quick {
		text += ", `--quick`"
	}
	for _, f := range []struct{ before, field, after string }{{"", "cores", " cores"}, {"", "cpu", ""},
		{"Linux ", "kernel", ""}, {"load ", "load", ""}} {
		v := fmt.Sprint(r.Machine[f.field])
		if r.Machine[f.field] == nil || v == "" {
			continue
		}
		if f.field == "load" { // the first of its fields is of the last minute
			v, _, _ = strings.Cut(v, " ")
		}
		text += ", " + f.before + v + f.after
	}
	return text
}

// short is a commit as people write it.
func short(commit string) string {
	if commit == "" {
		return bench.NoCommit
	}
	name, rest, _ := strings.Cut(commit, "-")
	if len(name) == 40 {
		name = name[:12]
	}
	return strings.TrimSuffix(name+"-"+rest, "-")
}

func optional(v *float64) string {
	if v == nil {
		return ""
	}
	return number(*v)
}

// number writes a figure with four digits, or all of a whole one, and commas between thousands.
func number(v float64) string {
	text := strconv.FormatFloat(v, 'g', 4, 64)
	if v == math.Trunc(v) || math.Abs(v) >= 1000 || strings.Contains(text, "e") {
		text = strconv.FormatFloat(v, 'f', -1, 64)
	}
	whole, rest, _ := strings.Cut(text, ".")
	digits := strings.TrimPrefix(whole, "-")
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if strings.HasPrefix(whole, "-") {
		digits = "-" + digits
	}
	return strings.TrimSuffix(digits+"."+rest, ".")
}
