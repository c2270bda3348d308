package sim

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sigma"
)

// A script is a line for each act, as in
//
//	fleet {"name": "web", "program": "/bin/web", "least": 1, "most": 8}
//	load 2.8                    requests, in what as many members serve
//	run 5s
//	behave 2 {"Crash": true}    members of revision 2 (Behaviour)
//	apply {"name": "web", "program": "/bin/web2", "least": 1, "most": 8}
//	kill 1                      the member of that number, in the order of their start
//	lose 0                      a machine, of five
//	talk 1 83                   members exchange so many MB/s with what is on that machine
//	full 1                      that machine has no room
//	restart                     another coordinator takes over
//	dial                        a client finds no member
//	roll
//	remove
//
// Empty lines and those that begin with # say nothing, and a line ---- ends the script. What the
// coordinator decides is printed as it happens, and after each run how the fleet is.

// Limits of a script.
const (
	scriptMax = 1 << 20   // bytes
	runMax    = time.Hour // of all runs
)

// script is one that is being run.
type script struct {
	out   io.Writer
	w     *World
	began time.Time
	told  int // decisions that were printed
}

// RunScript runs a script and prints what happens.
func RunScript(in io.Reader, out io.Writer) error {
	s := &script{out: out}
	lines := bufio.NewScanner(io.LimitReader(in, scriptMax))
	lines.Buffer(nil, 4*fleet.SpecMax)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if line == "----" {
			break
		}
		word, rest, _ := strings.Cut(line, " ")
		if err := s.act(word, strings.TrimSpace(rest)); err != nil {
			return sigma.Errorf("sim.RunScript", sigma.KindInvalid, "line %d: %v", n, err)
		}
		s.tell()
	}
	return lines.Err()
}

func (s *script) act(word, rest string) error {
	if word == "fleet" {
		spec, err := fleet.ParseSpec([]byte(rest))
		if err == nil {
			s.w = New(1, spec, 5)
			s.began = s.w.Now
		}
		return err
	}
	if s.w == nil {
		return fmt.Errorf("a script begins with a line fleet {...}")
	}
	switch word {
	case "apply":
		spec, err := fleet.ParseSpec([]byte(rest))
		if err == nil {
			s.w.Apply(spec)
		}
		return err
	case "behave":
		return s.behave(rest)
	case "load":
		x, err := strconv.ParseFloat(rest, 64)
		if err != nil || !(x >= 0 && x <= 1e6) {
			return fmt.Errorf("%q is no load", rest)
		}
		s.w.Load = x
	case "run":
		return s.run(rest)
	case "talk":
		return s.talk(rest)
	case "kill", "lose", "full":
		n, err := strconv.ParseUint(rest, 10, 31)
		if err != nil {
			return fmt.Errorf("%q is no number", rest)
		}
		full := func(n int) { s.w.Full[n] = true }
		map[string]func(int){"kill": s.w.Kill, "lose": s.w.Lose, "full": full}[word](int(n))
	default:
		do, ok := map[string]func(){"restart": s.w.Restart, "dial": s.w.Dial, "roll": s.w.Roll,
			"remove": s.w.Remove}[word]
		if !ok || rest != "" {
			return fmt.Errorf("%.40q is no act", word+" "+rest)
		}
		do()
	}
	return nil
}

func (s *script) behave(rest string) error {
	number, text, _ := strings.Cut(rest, " ")
	revision, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return fmt.Errorf("%q is no revision", number)
	}
	var b Behaviour
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return fmt.Errorf("a behaviour is JSON, as {\"Crash\": true}: %v", err)
	}
	s.w.Behave[revision] = b
	return nil
}

func (s *script) talk(rest string) error {
	machine, text, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseUint(machine, 10, 31)
	if err != nil || int(n) >= s.w.Machines {
		return fmt.Errorf("%q is no machine", machine)
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate >= 0 && rate <= 1e6) {
		return fmt.Errorf("%q is no rate in MB/s", text)
	}
	s.w.Talk[int(n)] = 1e6 * rate
	return nil
}

// run lets time pass, and tells how the fleet is then.
func (s *script) run(rest string) error {
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || s.w.Now.Sub(s.began)+d > runMax {
		return fmt.Errorf("%q is no time; all together have an hour at most", rest)
	}
	for end := s.w.Now.Add(d); s.w.Now.Before(end); {
		s.w.Run(min(100*time.Millisecond, end.Sub(s.w.Now)))
		s.tell()
	}
	if s.w.Gone() {
		fmt.Fprintf(s.out, "%8s  gone\n", s.at(s.w.Now))
		return nil
	}
	st := s.w.Status()
	fmt.Fprintf(s.out, "%8s  %s: %d of %d ready, %d starting, %d draining, revision %d, %.0f %% busy\n", s.at(s.w.Now),
		st.Phase, st.Ready, st.Want, st.Starting, st.Draining, st.Revision, 100*st.Busy)
	return nil
}

// tell prints the decisions that are new.
func (s *script) tell() {
	if s.w == nil {
		return
	}
	for ; s.told < len(s.w.Notes); s.told++ {
		d := s.w.Notes[s.told]
		fmt.Fprintf(s.out, "%8s  %s: %s\n", s.at(d.Time), d.Reason, d.Why)
	}
}

func (s *script) at(t time.Time) string {
	return strconv.FormatFloat(t.Sub(s.began).Seconds(), 'f', 2, 64)
}
