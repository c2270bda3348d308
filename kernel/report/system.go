package report

import (
	"time"

	"sigmaos.dev/sigma"
)

// Version is /sys/version.
type Version struct {
	Version  string `json:"version"` // of this machine's sigmad
	Machine  string `json:"machine"` // this one
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Machine is a line of /sys/machines as the provider sees it, and an object of "sigma machine ls
// --json".
type Machine struct {
	MachineSeen
	Address     string     `json:"address,omitempty"`
	Version     string     `json:"version"`
	Incarnation uint64     `json:"incarnation"`
	Fence       uint64     `json:"fence,omitempty"` // of its last loss
	Joined      time.Time  `json:"joined"`
	Heard       *time.Time `json:"heard,omitempty"`
}

// MachineSeen is what tenants see of a machine.
type MachineSeen struct {
	Name     string            `json:"name"`
	State    string            `json:"state"` // alive, suspect or lost
	Control  bool              `json:"control"`
	Cordoned bool              `json:"cordoned"`
	Draining bool              `json:"draining"`
	Labels   map[string]string `json:"labels"`
	CPU      float64           `json:"cpu"` // cores that it offers
	Memory   uint64            `json:"memory_bytes"`
	Self     bool              `json:"self"` // it is this machine
}

// OfMachine describes a machine to one at machine self.
func OfMachine(m sigma.MachineInfo, self sigma.MachineID) Machine {
	j := Machine{MachineSeen: MachineSeen{Name: string(m.ID), State: m.State.String(), Control: m.Control,
		Cordoned: m.Cordoned, Draining: m.Draining, Labels: m.Labels, CPU: float64(m.CPU) / 1000,
		Memory: uint64(m.Memory), Self: m.ID == self},
		Address: m.Address, Version: m.Version, Incarnation: uint64(m.Incarnation), Fence: uint64(m.Fence),
		Joined: m.Joined, Heard: moment(m.Heard)}
	if j.Labels == nil {
		j.Labels = map[string]string{}
	}
	return j
}

// Realm is a line of /sys/realms, and an object of "sigma realm ls --json".
type Realm struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Procs   int       `json:"procs"` // that have not ended
	Shares  uint32    `json:"shares"`

	Limits RealmLimits `json:"limits"` // of its names, and at each machine
}

// RealmLimits are those of a realm's names.
type RealmLimits struct {
	Names   uint64 `json:"names"`
	Bytes   uint64 `json:"bytes"`
	Watches uint64 `json:"watches"`
	Leases  uint64 `json:"leases"`

	Sessions uint64 `json:"sessions"`
	Handles  uint64 `json:"handles"`
	Scratch  uint64 `json:"scratch"`

	MaxCPU        float64 `json:"max_cpu,omitempty"` // cores, as are min_cpu and reserve_cpu; none of these: no limit
	MaxMemory     uint64  `json:"max_memory_bytes,omitempty"`
	MinCPU        float64 `json:"min_cpu,omitempty"`
	MinMemory     uint64  `json:"min_memory_bytes,omitempty"`
	ReserveCPU    float64 `json:"reserve_cpu,omitempty"`
	ReserveMemory uint64  `json:"reserve_memory_bytes,omitempty"`
}

// OfRealm describes a realm.
func OfRealm(r sigma.RealmInfo) Realm {
	l := r.Limits
	return Realm{string(r.ID), r.Created, r.Procs, max(1, r.Shares), RealmLimits{l.Names, uint64(l.Bytes), l.Watches,
		l.Leases, l.Sessions, l.Handles, uint64(l.Scratch),
		cores(l.MaxCPU), uint64(l.MaxMemory), cores(l.MinCPU), uint64(l.MinMemory), cores(l.ReserveCPU),
		uint64(l.ReserveMemory)}}
}

func cores(c sigma.MilliCPU) float64 { return float64(c) / 1000 }

// Credential is a line of /sys/credentials, and an object of "sigma realm credential ls --json".
type Credential struct {
	Realm   string     `json:"realm"`
	Name    string     `json:"name"`
	Role    string     `json:"role"` // viewer, developer or owner
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires,omitempty"` // none: it does not
	By      string     `json:"made_by,omitempty"` // the credential that made it; none: the provider
}

// OfCredential describes a realm's credential.
func OfCredential(realm sigma.RealmID, c sigma.Credential) Credential {
	out := Credential{Realm: string(realm), Name: c.Name, Role: c.Role.String(), Created: c.Created, By: c.By}
	if !c.Expires.IsZero() {
		out.Expires = &c.Expires
	}
	return out
}

// Queue is a line of /sys/queues: what of a realm waits at the scheduler for a machine with room.
type Queue struct {
	Realm   string `json:"realm"`
	Waiting int    `json:"waiting"`
	Memory  uint64 `json:"memory_bytes"` // that those ask for
	Shares  uint32 `json:"shares"`

	// Of a latency-critical proc, each of which has a line of its own.
	Proc  string `json:"proc,omitempty"`
	Class string `json:"class,omitempty"` // "lc"
	Why   string `json:"why,omitempty"`   // it waits
}

// MachineUse is the first line of /sys/utilisation as the provider sees it: what runs at this
// machine, and what there is room for.
type MachineUse struct {
	Machine  string  `json:"machine"`
	Cores    float64 `json:"cores"`   // that it offers
	Running  int     `json:"running"` // procs, those about to run included
	Waiting  int     `json:"waiting"` // that were spawned here, at the scheduler
	Capacity uint64  `json:"procs_memory_bytes"`
	Free     uint64  `json:"procs_memory_free_bytes"`
}

// RealmUse is a further line of it: what of a realm is at this machine.
type RealmUse struct {
	Machine string `json:"machine"`
	Realm   string `json:"realm"`
	Running int    `json:"running"`
	Waiting int    `json:"waiting"`     // queued and starting
	Limit   uint64 `json:"limit_bytes"` // of those that run
}

// MachineLoad is a line of /sys/load: what the processors and the memory of a machine are used for.
// Processor time is in seconds since some moment, the same as long as the machine's sigmad lives:
// two reads tell what was used between.
type MachineLoad struct {
	Machine     string    `json:"machine"`
	Since       time.Time `json:"since"` // that sigmad began: figures of another one cannot be compared
	At          float64   `json:"at_seconds"`
	Cores       float64   `json:"cores"`              // that it offers
	Reserved    float64   `json:"lc_reserved_cores"`  // by latency-critical procs
	LC          float64   `json:"lc_cpu_seconds"`     // of those
	BE          float64   `json:"be_cpu_seconds"`     // of best-effort procs
	Services    float64   `json:"system_cpu_seconds"` // of the boot set
	Sigmad      float64   `json:"sigmad_cpu_seconds"`
	Memory      uint64    `json:"memory_bytes"`      // that procs' limits may add up to
	MemoryGiven uint64    `json:"memory_held_bytes"` // that they do
	MemoryLC    uint64    `json:"memory_lc_reserved_bytes"`
	MemoryUsed  uint64    `json:"memory_used_bytes"` // by procs
	MemoryFree  uint64    `json:"memory_free_bytes"`
}

// RealmLoad is a further line of it: a realm's part at a machine.
type RealmLoad struct {
	Machine  string  `json:"machine"`
	At       float64 `json:"at_seconds"`
	Realm    string  `json:"realm"`
	Shares   uint32  `json:"shares"`
	Reserved float64 `json:"lc_reserved_cores"`
	LC       float64 `json:"lc_cpu_seconds"`
	BE       float64 `json:"be_cpu_seconds"`
	Running  int     `json:"be_running"` // best-effort procs
}

// Load is a line of /sys/load, whatever it is.
type Load struct {
	MachineLoad
	Realm   string `json:"realm"`      // "" = of the machine
	Shares  uint32 `json:"shares"`     // of a realm
	Running int    `json:"be_running"` // of a realm
	Missing string `json:"missing"`    // why there is no line of the machine
}

// Endpoint is a line of /sys/endpoints: where a proc of this machine listens. What it takes to dial
// it is in the endpoint's file only.
type Endpoint struct {
	Realm   string `json:"realm"`
	Machine string `json:"machine"`
	Proc    string `json:"proc"`
	Form    string `json:"form"`
	Waiting int    `json:"waiting"` // connections that are not accepted yet
}

// Connection is a line of /sys/connections: one that procs of this machine have. Bytes of TCP are
// the kernel's account; all else is what the procs have counted in their meters.
type Connection struct {
	Realm     string    `json:"realm"`   // of who listens
	Machine   string    `json:"machine"` // that tells it
	Proc      string    `json:"proc"`    // that listens
	On        string    `json:"on"`      // machine of that
	From      string    `json:"from"`    // proc that dialled; "" = a program outside, or sigmad
	FromRealm string    `json:"from_realm"`
	FromOn    string    `json:"from_on"`
	Transport string    `json:"transport"` // unix, ring, tcp, relay
	Began     time.Time `json:"began"`
	Ready     bool      `json:"ready,omitempty"` // it was made in advance, and has not begun as far as is known
	// from the end that this machine has; if it has both, the dialler's
	Sent     *uint64 `json:"sent_bytes,omitempty"`
	Received *uint64 `json:"received_bytes,omitempty"`
	Messages *uint64 `json:"messages,omitempty"` // of both directions
	Turns    *uint64 `json:"round_trips,omitempty"`
	Spun     *uint64 `json:"spun_ns,omitempty"` // by both procs
}

// Talk is a line of /sys/traffic: two procs, and what the connections that they have now carried.
type Talk struct {
	Machine     string    `json:"machine"` // that tells it
	At          time.Time `json:"at"`      // by its clock
	Realm       string    `json:"realm"`   // of who listens
	From        string    `json:"from"`    // proc that dialled; "" = a program outside
	FromOn      string    `json:"from_on"`
	To          string    `json:"to"` // proc that listens
	On          string    `json:"on"`
	Sent        uint64    `json:"sent_bytes"` // by who dialled
	Received    uint64    `json:"received_bytes"`
	Connections int       `json:"connections"`
}

// Distance is a line of /sys/distances.
type Distance struct {
	Machine   string   `json:"machine"`
	To        string   `json:"to"`
	RoundTrip *float64 `json:"rtt_seconds"` // null = not measured
}

// ConnectionEvent is a line of sigma ep log.
type ConnectionEvent struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"` // dialled, revoked, cut
	Connection
}

// Limit is a line of /sys/limits.
type Limit struct {
	Realm string  `json:"realm"`
	Limit string  `json:"limit"`
	Max   uint64  `json:"max"`
	Used  *uint64 `json:"used,omitempty"` // if it is a sum that is known
}

// Registration is a line of /sys/init, and an object of "sigma init ls --json": a proc that is kept
// running.
type Registration struct {
	Realm   string     `json:"realm"`
	Name    string     `json:"name"`
	State   string     `json:"state"` // running, waiting, ended, given-up, removing or damaged
	Proc    string     `json:"proc,omitempty"`
	Program string     `json:"program"`
	Args    []string   `json:"args"`
	Restart string     `json:"restart"`
	Most    uint32     `json:"most_starts,omitempty"`
	Starts  uint64     `json:"starts"`
	Added   time.Time  `json:"added"`
	History []Instance `json:"history"` // the latest 32, the oldest first
}

// Instance is one run of a registered proc.
type Instance struct {
	Proc   string     `json:"proc"`
	Begun  time.Time  `json:"begun"`
	Ended  *time.Time `json:"ended,omitempty"`
	Status *Status    `json:"status,omitempty"`
}
