package machines

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

func (m *member) copy() Member {
	c := m.Member
	c.Labels, c.Given = maps.Clone(c.Labels), maps.Clone(c.Given)
	return c
}

func (c *Core) makeToken(now time.Time, e MakeToken) ([]Effect, error) {
	const op = "machines.MakeToken"
	if e.Uses == 0 {
		e.Uses = 1
	}
	if e.TTL == 0 {
		e.TTL = time.Hour
	}
	switch {
	case e.ID == "" || c.tokens[e.ID] != nil:
		return nil, sigma.Errorf(op, sigma.KindExists, "there is a token %.80s", e.ID)
	case e.Uses < 0 || e.Uses > TokenUsesMax:
		return nil, sigma.Errorf(op, sigma.KindInvalid, "a token can be used 1 to %d times, not %d", TokenUsesMax,
			e.Uses)
	case e.TTL < 0 || e.TTL > TokenAgeMax:
		return nil, sigma.Errorf(op, sigma.KindInvalid, "a token is good for at most %v, not %v", TokenAgeMax, e.TTL)
	case len(c.tokens) >= TokensMax:
		return nil, &sigma.Error{Op: op, Kind: sigma.KindBusy, Msg: fmt.Sprintf("there are %d tokens", TokensMax),
			Hint: "those that ended are forgotten after a day; make one with more uses"}
	case len(c.members) > 0 && !c.reachable():
		return nil, &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
			Msg:  "no machine can join: no machine of the system was started with an address that others can reach",
			Hint: "restart it with one: sigma down; sigma up --address HOST:PORT, as in 10.0.0.1:7700"}
	}
	t := &Token{ID: e.ID, Key: e.Key, Uses: e.Uses, Made: now, Expires: now.Add(e.TTL)}
	c.tokens[e.ID] = t
	return []Effect{SaveToken{*t}}, nil
}

// reachable says whether there is an address to join at.
func (c *Core) reachable() bool {
	for _, m := range c.members {
		if m.Address != "" {
			return true
		}
	}
	return false
}

func (c *Core) revoke(now time.Time, id identity.TokenID) ([]Effect, error) {
	t := c.tokens[id]
	if t == nil {
		return nil, sigma.Errorf("machines.RevokeToken", sigma.KindNotFound, "there is no token %.80s", id)
	}
	if t.Revoked {
		return nil, nil
	}
	t.Revoked, t.Over = true, now
	return []Effect{SaveToken{*t}}, nil
}

// forgetTokens drops those that ended long ago.
func (c *Core) forgetTokens(now time.Time) (out []Effect) {
	for _, id := range slices.Sorted(maps.Keys(c.tokens)) {
		t := c.tokens[id]
		over := t.Expires
		if !t.Over.IsZero() {
			over = t.Over
		}
		if now.Sub(over) > tokenKept {
			delete(c.tokens, id)
			out = append(out, DropToken{id})
		}
	}
	return out
}

// useToken says whether a token lets somebody in. Who does not know its secret learns nothing about
// it.
func (c *Core) useToken(now time.Time, id identity.TokenID, proven bool) (*Token, error) {
	refuse := func(format string, args ...any) (*Token, error) {
		return nil, &sigma.Error{Op: "machines.Enrol", Kind: sigma.KindPermission, Msg: fmt.Sprintf(format, args...),
			Hint: "make a token on a machine of the system: sigma token create"}
	}
	t := c.tokens[id]
	switch {
	case id == "":
		return refuse("the machine is not known here, and it shows no token")
	case t == nil || !proven:
		return refuse("the token is not one of this system's")
	case t.Revoked:
		return refuse("token %s was revoked", id)
	case t.Uses <= 0:
		return refuse("token %s was used up", id)
	case !now.Before(t.Expires):
		return refuse("token %s expired at %s; the clock here says %s", id, t.Expires.UTC().Format(time.RFC3339),
			now.UTC().Format(time.RFC3339))
	}
	return t, nil
}

func (c *Core) found(now time.Time, r Request) ([]Effect, error) {
	if m := c.members[r.ID]; m != nil && m.Key == r.Key && len(c.members) == 1 { // it did not hear the answer
		return c.enrol(now, Enrol{Request: r})
	}
	if len(c.members) > 0 {
		return nil, sigma.Errorf("machines.Found", sigma.KindExists, "the system has machines already")
	}
	if err := r.check(true); err != nil {
		return nil, err
	}
	m := &member{Member: Member{ID: r.ID, Key: r.Key, Labels: maps.Clone(r.Labels), Given: maps.Clone(r.Labels),
		Control: true, Joined: now}}
	c.members[r.ID] = m
	return c.register(now, m, r), nil
}

// enrol registers a machine. The same name with the same key is the same machine: it lost the
// answer to its join, was started again, or comes back.
func (c *Core) enrol(now time.Time, e Enrol) ([]Effect, error) {
	const op = "machines.Enrol"
	if err := e.check(len(c.members) == 1 && c.members[e.ID] != nil); err != nil {
		return nil, err
	}
	if m := c.members[e.ID]; m != nil && m.Key == e.Key {
		var out []Effect
		if !m.Lost {
			out = c.lose(m, "its sigmad was started again")
			out = out[:len(out)-1] // the roster comes with the new life
		}
		m.give(e.Labels)
		return append(out, c.register(now, m, e.Request)...), nil
	}
	t, err := c.useToken(now, e.Token, e.ProvenToken)
	if err != nil {
		return nil, err
	}
	if c.members[e.ID] != nil {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindExists, Msg: fmt.Sprintf("there is a machine %s", e.ID),
			Hint: "join under another name (--machine), or remove that machine first (sigma machine rm)"}
	}
	for _, m := range c.sorted() {
		if m.Key == e.Key {
			return nil, sigma.Errorf(op, sigma.KindExists, "this machine has joined before, as %s", m.ID)
		}
	}
	if len(c.members) >= identity.MembersMax {
		return nil, sigma.Errorf(op, sigma.KindBusy, "the system has %d machines", identity.MembersMax)
	}
	if t.Uses--; t.Uses == 0 {
		t.Over = now
	}
	m := &member{Member: Member{ID: e.ID, Key: e.Key, Labels: maps.Clone(e.Labels), Given: maps.Clone(e.Labels),
		Joined: now, Token: e.Token}}
	c.members[e.ID] = m
	return append([]Effect{SaveToken{*t}}, c.register(now, m, e.Request)...),
		nil // the use first: a crash in between costs a use, never gives one
}

// give changes the labels by what the machine says differently from last time; what operators
// changed since stays.
func (m *member) give(labels map[string]string) {
	if maps.Equal(labels, m.Given) {
		return
	}
	all := map[string]string{}
	maps.Copy(all, m.Labels)
	for name, value := range m.Given {
		if _, still := labels[name]; !still && all[name] == value {
			delete(all, name)
		}
	}
	for name, value := range labels {
		if m.Given[name] != value {
			all[name] = value
		}
	}
	if checkLabels(all) == nil { // too many are no reason to keep the machine out
		m.Labels, m.Given = all, maps.Clone(labels)
	}
}

// register begins a life.
func (c *Core) register(now time.Time, m *member, r Request) []Effect {
	epoch, save := c.next()
	m.Incarnation, m.Lost, m.suspect = sigma.Incarnation(epoch), false, false
	m.Address, m.Version, m.CPU, m.Memory = r.Address, r.Version, r.CPU, r.Memory
	m.heard, m.vouched, m.probed, m.grace = now, time.Time{}, time.Time{}, now.Add(c.timing.Join)
	// The roster comes last: the links of the life before end with it, and those of a control
	// machine carry what is written before.
	return []Effect{save, SaveMember{m.copy()}, Certify{m.copy(), epoch}, c.publish()}
}

// check looks at the form of a request. A machine that is alone needs no address.
func (r *Request) check(alone bool) error {
	const op = "machines.Enrol"
	if err := r.ID.Check(); err != nil {
		return sigma.Wrap(op, "", err)
	}
	switch {
	case r.Address == "" && alone:
	case r.Address == "":
		return &sigma.Error{Op: op, Kind: sigma.KindInvalid,
			Msg:  "a machine of a system of several needs an address that the others can reach",
			Hint: "give one, as in --address 10.0.0.2:7700"}
	default:
		if err := identity.CheckAddress(r.Address); err != nil {
			return sigma.Wrap(op, "", err)
		}
	}
	if len(r.Version) > 64 {
		return sigma.Errorf(op, sigma.KindTooBig, "the version is longer than 64 bytes")
	}
	return checkLabels(r.Labels)
}

func checkLabels(labels map[string]string) error {
	const op = "machines.Label"
	if len(labels) > LabelsMax {
		return sigma.Errorf(op, sigma.KindTooBig, "a machine has at most %d labels", LabelsMax)
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if !labelOK(name, false) || !labelOK(labels[name], true) {
			return &sigma.Error{Op: op, Kind: sigma.KindInvalid, Msg: fmt.Sprintf("%.80q is no label",
				name+"="+labels[name]),
				Hint: "use 1 to 63 of a-z, A-Z, 0-9, '.', '_' and '-' on each side, as in zone=rack-7"}
		}
	}
	return nil
}

func labelOK(s string, empty bool) bool {
	for i := range len(s) {
		ch := s[i]
		if (ch < 'a' || ch > 'z') && (ch < 'A' || ch > 'Z') && (ch < '0' || ch > '9') && ch != '.' && ch != '_' &&
			ch != '-' {
			return false
		}
	}
	return len(s) <= 63 && (empty || s != "")
}

// change carries out what an operator asks of one member.
func (c *Core) change(e Event) ([]Effect, error) {
	find := func(id sigma.MachineID) (*member, error) {
		if m := c.members[id]; m != nil {
			return m, nil
		}
		return nil, &sigma.Error{Op: "machines.Step", Kind: sigma.KindNotFound,
			Msg: fmt.Sprintf("there is no machine %.80s", id), Hint: "sigma machine ls lists them"}
	}
	switch e := e.(type) {
	case Cordon:
		m, err := find(e.ID)
		if err != nil || m.Cordoned == e.On && !m.Draining {
			return nil, err
		}
		m.Cordoned, m.Draining = e.On, m.Draining && e.On
		_, save := c.next()
		return []Effect{save, SaveMember{m.copy()}, c.publish()}, nil
	case DrainStart:
		m, err := find(e.ID)
		if err != nil {
			return nil, err
		}
		m.Cordoned, m.Draining = true, true
		_, save := c.next()
		return []Effect{save, SaveMember{m.copy()}, c.publish(), Drain{m.ID}}, nil
	case Label:
		m, err := find(e.ID)
		if err != nil {
			return nil, err
		}
		return c.label(m, e.Labels)
	case Control:
		m, err := find(e.ID)
		if err != nil || m.Control == e.On {
			return nil, err
		}
		return c.control(m, e.On)
	case Remove:
		m, err := find(e.ID)
		if err != nil {
			return nil, err
		}
		return c.remove(m, e.Force)
	case GiveUp:
		m, err := find(e.ID)
		if err == nil {
			err = mayRemove(m, e.Force)
		}
		if err != nil || m.Lost {
			return nil, err
		}
		return c.lose(m, "it is removed"), nil
	}
	return nil, sigma.Errorf("machines.Step", sigma.KindUnsupported, "%T is no event", e)
}

func (c *Core) label(m *member, labels map[string]string) ([]Effect, error) {
	all := maps.Clone(m.Labels)
	if all == nil {
		all = map[string]string{}
	}
	if err := checkLabels(labels); err != nil {
		return nil, err
	}
	for name, value := range labels {
		if value == "" {
			delete(all, name)
		} else {
			all[name] = value
		}
	}
	if err := checkLabels(all); err != nil {
		return nil, err
	}
	m.Labels = all
	return []Effect{SaveMember{m.copy()}}, nil
}

func (c *Core) controls() (n int) {
	for _, m := range c.members {
		if m.Control {
			n++
		}
	}
	return n
}

// mayControl says why a machine may not become a control machine, or not cease to be one.
func (c *Core) mayControl(e Control) error {
	const op = "machines.Control"
	m := c.members[e.ID]
	if m == nil || m.Control == e.On {
		return nil
	}
	switch n := c.controls(); {
	case e.On && n >= ControlMax:
		return sigma.Errorf(op, sigma.KindBusy, "there are %d control machines", ControlMax)
	case e.On && m.Lost:
		return sigma.Errorf(op, sigma.KindUnavailable, "machine %s is lost", m.ID)
	case !e.On && n == 1:
		return sigma.Errorf(op, sigma.KindInvalid, "machine %s is the last control machine", m.ID)
	case !e.On && m.ID == c.self:
		return &sigma.Error{Op: op, Kind: sigma.KindInvalid, Msg: fmt.Sprintf("machine %s decides about membership",
			m.ID), Hint: "stop sigmaOS there (sigma down), so that another control machine takes over; then ask again"}
	}
	return nil
}

func (c *Core) control(m *member, on bool) ([]Effect, error) {
	if err := c.mayControl(Control{m.ID, on}); err != nil {
		return nil, err
	}
	_, save := c.next()
	m.Control = on
	delete(c.reported, m.ID)
	return []Effect{save, SaveMember{m.copy()}, c.publish()}, nil
}

// mayRemove says why a machine may not be removed now.
func mayRemove(m *member, force bool) error {
	const op = "machines.Remove"
	switch {
	case m.Control:
		return &sigma.Error{Op: op, Kind: sigma.KindInvalid,
			Msg:  fmt.Sprintf("machine %s holds a part of the control plane", m.ID),
			Hint: "have it give that up first: sigma machine control " + string(m.ID) + " off"}
	case !m.Lost && !m.Draining && !force:
		return &sigma.Error{Op: op, Kind: sigma.KindBusy, Msg: fmt.Sprintf("machine %s may run procs", m.ID),
			Hint: "drain it first (sigma machine drain), or use --force and lose them"}
	}
	return nil
}

func (c *Core) remove(m *member, force bool) ([]Effect, error) {
	if err := mayRemove(m, force); err != nil {
		return nil, err
	}
	epoch, save := c.next()
	out := []Effect{save, DropMember{m.ID}}
	if !m.Lost {
		out = append(out, Lost{m.ID, m.Incarnation, sigma.Epoch(epoch), "it was removed"})
	}
	delete(c.members, m.ID)
	delete(c.reported, m.ID)
	return append(out, c.publish()), nil
}
