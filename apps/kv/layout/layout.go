// Package layout is the configuration of a kv store: its groups, which group has which shard, and
// the moves that are under way; and the rule by which it changes, as a function without input or
// output.
//
// It promises: Step moves as few shards as an even division allows, starts at most MovesMax moves
// at a time, and takes a group away only when it has no shard. No bytes make Parse panic. It
// assumes that the file is changed only from the version that was read. Users: apps/kv and its
// packages.
package layout

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/sigma"
)

// Bounds of a Config.
const (
	NameMax     = 24 // bytes of a store's name
	GroupsMax   = 60
	ReplicasMax = 5
	// NextMax bounds the numbers of groups, all of which a balancer that begins looks at.
	NextMax = 10_000
	// MovesMax bounds the moves that are under way at a time.
	MovesMax = 2
	// SizeMax bounds the file.
	SizeMax = 1 << 20
)

// Config is the configuration of a store.
type Config struct {
	Name     string `json:"name"`
	Epoch    uint64 `json:"epoch"`    // grows with each change
	Program  string `json:"program"`  // path of the realm of the members' program
	Replicas int    `json:"replicas"` // members of each group
	// Durable has members write a log that survives them.
	Durable bool   `json:"durable,omitempty"`
	Memory  string `json:"memory"` // of each member, as in 256MiB
	CPU     uint32 `json:"cpu"`    // thousandths of a core that a member reserves
	Want    int    `json:"want"`   // groups that there should be
	Next    uint32 `json:"next"`   // the number of the next group
	// Revision grows each time all members are to be replaced, as by those of another Program.
	Revision uint64 `json:"revision,omitempty"`
	// Held has Step leave shards where they are, unless their group leaves: a move was asked for.
	Held bool `json:"held,omitempty"`
	// Groups are the groups that there are. One that is Leaving gets no shards.
	Groups map[uint32]Group `json:"groups"`
	Owners []uint32         `json:"owners"` // the group of each shard
	Moves  map[uint16]Move  `json:"moves,omitempty"`
}

// Group is a group of a store.
type Group struct {
	Leaving bool `json:"leaving,omitempty"`
	// Revision is what the group was replaced to, or is being replaced to: its members below
	// Replaced are of that one, the others of the one before.
	Revision uint64 `json:"revision,omitempty"`
	Replaced int    `json:"replaced,omitempty"`
}

// Surge is how many members a group has beyond Replicas while its members are replaced, so that the
// keys are as safe as otherwise. Members of a durable group go on with the logs of those before.
func (c *Config) Surge() int {
	if c.Durable {
		return 0
	}
	return 1
}

// Settled reports whether all members of a group are of the latest revision.
func (c *Config) Settled(group uint32) bool {
	g := c.Groups[group]
	return g.Revision == c.Revision && g.Replaced >= c.Replicas
}

// Move is a move of a shard that is under way. The shard is its owner's until it has arrived.
type Move struct {
	To    uint32 `json:"to"`
	Epoch uint64 `json:"epoch"` // of the Config that had it first
}

// New gives the configuration of a store that begins.
func New(name, program string, shards, groups, replicas int) *Config {
	c := &Config{Name: name, Epoch: 1, Program: program, Replicas: replicas, Want: groups, Next: 1,
		Groups: map[uint32]Group{}, Owners: make([]uint32, shards)}
	for range groups {
		c.addGroup()
	}
	for i := range c.Owners {
		c.Owners[i] = uint32(1 + i%max(groups, 1))
	}
	return c
}

// Parse reads a configuration and checks it.
func Parse(text []byte) (*Config, error) {
	c := &Config{}
	err := error(nil)
	if len(text) > SizeMax {
		err = fmt.Errorf("it has %d bytes", len(text))
	} else if err = json.Unmarshal(text, c); err == nil {
		err = c.Check()
	}
	if err != nil {
		return nil, &sigma.Error{Op: "layout.Parse", Kind: sigma.KindInvalid,
			Msg: "this is no configuration of a kv store", Err: err,
			Hint: "the file config of a store is written by sigma kv and its balancers only"}
	}
	return c, nil
}

// ParseOf is Parse for the configuration of a store: one of another name is refused, since a name
// leads to the procs and files of a store.
func ParseOf(name string, text []byte) (*Config, error) {
	c, err := Parse(text)
	if err == nil && c.Name != name {
		return nil, &sigma.Error{Op: "layout.ParseOf", Path: File(name), Kind: sigma.KindInvalid,
			Msg:  fmt.Sprintf("the configuration of %s is that of a store %s", name, c.Name),
			Hint: "the file config of a store is written by sigma kv and its balancers only"}
	}
	return c, err
}

// Text is the configuration as its file has it.
func (c *Config) Text() []byte {
	text, _ := json.MarshalIndent(c, "", " ") // maps of numbers and strings have no errors
	return append(text, '\n')
}

// Check returns a KindInvalid error that says what is wrong first.
func (c *Config) Check() error {
	wrong := func(format string, args ...any) error {
		return &sigma.Error{Op: "layout.Check", Kind: sigma.KindInvalid, Msg: fmt.Sprintf(format, args...),
			Hint: "docs/reference/kv.md names the bounds"}
	}
	n := len(c.Owners)
	switch {
	case CheckName(c.Name) != nil:
		return CheckName(c.Name)
	case c.Replicas != 1 && c.Replicas != 3 && c.Replicas != 5:
		return wrong("a group has 1, 3 or 5 replicas, not %d", c.Replicas)
	case n == 0 || n > store.ShardsMax || n&(n-1) != 0:
		return wrong("a store has a power of two of shards, %d at most, not %d", store.ShardsMax, n)
	case c.Want < 1 || c.Want > GroupsMax || len(c.Groups) > 2*GroupsMax:
		return wrong("a store has 1 to %d groups, not %d", GroupsMax, c.Want)
	case c.Epoch == 0 || c.Next == 0 || c.Next > NextMax:
		return wrong("the epoch or the next group is 0, or the next group is above %d", NextMax)
	}
	for id := range c.Groups {
		if id == 0 || id >= c.Next {
			return wrong("group %d is not below the next one, %d", id, c.Next)
		}
	}
	for shard, group := range c.Owners {
		if _, is := c.Groups[group]; !is {
			return wrong("shard %d belongs to group %d, which there is not", shard, group)
		}
	}
	for shard, m := range c.Moves {
		if _, is := c.Groups[m.To]; !is || int(shard) >= n {
			return wrong("a move of shard %d to group %d", shard, m.To)
		}
	}
	return nil
}

// CheckName returns a KindInvalid error for what cannot be the name of a store.
func CheckName(name string) error {
	for i, c := range []byte(name) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' && i > 0) {
			name = ""
			break
		}
	}
	if name == "" || len(name) > NameMax {
		return &sigma.Error{Op: "layout.CheckName", Kind: sigma.KindInvalid, Msg: "this cannot be the name of a store",
			Hint: fmt.Sprintf("1 to %d of a-z, 0-9 and -, a letter or digit first", NameMax)}
	}
	return nil
}

// Dir is the directory of a store; File its configuration, Members that of a group's members.
func Dir(name string) string                   { return "/kv/" + name }
func File(name string) string                  { return Dir(name) + "/config" }
func Members(name string, group uint32) string { return Dir(name) + "/groups/" + number(group) }

// Founder is the file that says which member began a group.
func Founder(name string, group uint32) string { return Dir(name) + "/founders/" + number(group) }

// Slot is the file that says where the log of the i-th member of a durable group is.
func Slot(name string, group uint32, i int) string {
	return Dir(name) + "/slots/" + number(group) + "-" + strconv.Itoa(i)
}

// Logs is where a durable store's logs are on a machine.
func Logs(machine sigma.MachineID, name string) string {
	return "/ux/" + string(machine) + "/kv/" + name
}

// Keys is where the store is a tree: the endpoint of the balancer that leads.
func Keys(name string) string { return Dir(name) + "/keys" }

// MemberProc is the name of a registered member, BalancerProc that of a registered balancer.
func MemberProc(name string, group uint32, i int) string {
	return "kv-" + name + "-g" + number(group) + "-" + strconv.Itoa(i)
}
func BalancerProc(name string, i int) string { return "kv-" + name + "-balancer-" + strconv.Itoa(i) }

// GroupProcs is the name that the procs of a group have.
func GroupProcs(name string, group uint32) string { return "kv-" + name + "-g" + number(group) }

func number(group uint32) string { return strconv.FormatUint(uint64(group), 10) }

// Clone copies c.
func (c *Config) Clone() *Config {
	d := *c
	d.Groups, d.Owners, d.Moves = maps.Clone(c.Groups), slices.Clone(c.Owners), maps.Clone(c.Moves)
	if d.Moves == nil {
		d.Moves = map[uint16]Move{}
	}
	return &d
}

// Of lists the shards of a group.
func (c *Config) Of(group uint32) (shards []uint16) {
	for i, g := range c.Owners {
		if g == group {
			shards = append(shards, uint16(i))
		}
	}
	return shards
}

// Scale says how many groups there should be, and has Step divide shards evenly again.
func (c *Config) Scale(groups int) (*Config, error) {
	now := c.Clone()
	now.Epoch++
	now.Want, now.Held = groups, false
	return now, now.Check()
}

// Roll has all members replaced by those of a program.
func (c *Config) Roll(program string) *Config {
	now := c.Clone()
	now.Epoch++
	now.Revision++
	now.Program = program
	return now
}

// Replace says that the first members of a group are of a revision. It gives nil if the group is
// none any more, or another revision is wanted by now.
func (c *Config) Replace(group uint32, revision uint64, members int) *Config {
	g, is := c.Groups[group]
	if !is || revision != c.Revision {
		return nil
	}
	now := c.Clone()
	now.Epoch++
	g.Revision, g.Replaced = revision, members
	now.Groups[group] = g
	return now
}

func (c *Config) addGroup() {
	c.Groups[c.Next] = Group{Revision: c.Revision, Replaced: c.Replicas}
	c.Next++
}

// Begin begins a move that was asked for. KindInvalid: there is no such shard or group;
// KindExists: the shard moves already, or is there.
func (c *Config) Begin(shard int, to uint32) (*Config, error) {
	g, is := c.Groups[to]
	switch {
	case shard < 0 || shard >= len(c.Owners):
		return nil, sigma.Errorf("layout.Begin", sigma.KindInvalid, "there are the shards 0 to %d", len(c.Owners)-1)
	case !is || g.Leaving:
		return nil, &sigma.Error{Op: "layout.Begin", Kind: sigma.KindInvalid,
			Msg:  fmt.Sprintf("there is no group %d that takes shards", to),
			Hint: "list the groups with: sigma kv status NAME"}
	case c.Owners[shard] == to:
		return nil, sigma.Errorf("layout.Begin", sigma.KindExists, "shard %d is at group %d already", shard, to)
	}
	if _, moves := c.Moves[uint16(shard)]; moves {
		return nil, sigma.Errorf("layout.Begin", sigma.KindExists, "shard %d is moving already", shard)
	}
	now := c.Clone()
	now.Epoch++
	now.Held = true
	now.Moves[uint16(shard)] = Move{To: to, Epoch: now.Epoch}
	return now, nil
}

// Arrived ends a move. It gives nil if the move is none any more.
func (c *Config) Arrived(shard uint16, epoch uint64) *Config {
	m, is := c.Moves[shard]
	if !is || m.Epoch != epoch {
		return nil
	}
	now := c.Clone()
	now.Epoch++
	now.Owners[shard] = m.To
	delete(now.Moves, shard)
	return now
}

// Step gives the next configuration, or nil if nothing is to change. It adds groups that are
// wanted, has the last ones leave that are too many, removes those that are empty, and moves shards
// from groups that have too many to those that have too few. load is how busy each shard is, which
// chooses the shards that move; a missing one counts as 0.
func (c *Config) Step(load map[uint16]uint64) *Config {
	now := c.Clone()
	changed := now.resize()
	for len(now.Moves) < MovesMax && now.moveOne(load) {
		changed = true
	}
	if !changed {
		return nil
	}
	now.Epoch++
	for shard, m := range now.Moves {
		if m.Epoch == 0 {
			now.Moves[shard] = Move{m.To, now.Epoch}
		}
	}
	return now
}

// staying lists the groups that take shards, in order.
func (c *Config) staying() (groups []uint32) {
	for id, g := range c.Groups {
		if !g.Leaving {
			groups = append(groups, id)
		}
	}
	slices.Sort(groups)
	return groups
}

func (c *Config) resize() (changed bool) {
	groups := c.staying()
	for _, id := range slices.Sorted(maps.Keys(c.Groups)) { // those that have not left yet come first
		if len(groups) < c.Want && c.Groups[id].Leaving {
			g := c.Groups[id]
			g.Leaving = false
			c.Groups[id] = g
			groups, changed = append(groups, id), true
		}
	}
	slices.Sort(groups)
	for ; len(groups) < c.Want && c.Next < NextMax; changed = true {
		groups = append(groups, c.Next)
		c.addGroup()
	}
	for ; len(groups) > c.Want; changed = true {
		last := groups[len(groups)-1]
		g := c.Groups[last]
		g.Leaving = true
		c.Groups[last] = g
		groups = groups[:len(groups)-1]
	}
	used := map[uint32]bool{}
	for _, g := range c.Owners {
		used[g] = true
	}
	for _, m := range c.Moves {
		used[m.To] = true
	}
	for id, g := range c.Groups {
		if g.Leaving && !used[id] {
			delete(c.Groups, id)
			changed = true
		}
	}
	return changed
}

// moveOne begins a move if the groups are uneven, counting moves as done.
func (c *Config) moveOne(load map[uint16]uint64) bool {
	count, busy := map[uint32]int{}, map[uint32]uint64{}
	owner := func(shard int) uint32 {
		if m, moves := c.Moves[uint16(shard)]; moves {
			return m.To
		}
		return c.Owners[shard]
	}
	for shard := range c.Owners {
		count[owner(shard)]++
		busy[owner(shard)] += load[uint16(shard)]
	}
	staying := c.staying()
	to := slices.MinFunc(staying, func(a, b uint32) int { return count[a] - count[b] })
	from, most := uint32(0), count[to]+1 // more than one more is too many
	for id, g := range c.Groups {
		n := count[id]
		if c.Held && !g.Leaving {
			continue
		}
		if g.Leaving && n > 0 {
			n += len(c.Owners) + 1
		}
		if n > most || n == most && from != 0 && id < from {
			from, most = id, n
		}
	}
	if from == 0 {
		return false
	}
	// The shard that brings the two closest to an equal load.
	best, gap := -1, uint64(0)
	for shard := range c.Owners {
		if _, moves := c.Moves[uint16(shard)]; moves || c.Owners[shard] != from {
			continue
		}
		n := load[uint16(shard)]
		if d := distance(busy[from]-n, busy[to]+n); best < 0 || d < gap {
			best, gap = shard, d
		}
	}
	if best < 0 {
		return false
	}
	c.Moves[uint16(best)] = Move{To: to}
	return true
}

func distance(a, b uint64) uint64 { return max(a, b) - min(a, b) }
