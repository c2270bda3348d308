// Package report is how the state of the system is written for people's tools: the objects that the
// files of /proc and /sys consist of, one a line, and that "sigma ... --json" prints. Both are made
// of the same types, so that what was learned of one is true of the other (docs/reference/paths).
//
// It promises that keys keep their names and meanings, that new ones may come, and that sizes are
// bytes (keys end in _bytes), durations seconds (_seconds) and moments RFC 3339. It assumes nothing
// and does nothing but to convert. Users: kernel for the files, cmd/sigma for its answers.
package report

import (
	"bytes"
	"encoding/json"
	"time"

	"sigmaos.dev/sigma"
)

// Line gives v as one line of JSON. The types of this package have nothing in them that cannot be
// written.
func Line(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, sigma.Wrap("report.Line", "", err)
	}
	return b.Bytes(), nil
}

// Lines gives each of vs as a line.
func Lines[T any](vs []T) ([]byte, error) {
	var out []byte
	for i := range vs {
		line, err := Line(&vs[i])
		if err != nil {
			return nil, err
		}
		out = append(out, line...)
	}
	return out, nil
}

// Printed is a line of /proc/PID/times: when a proc printed what begins at a byte of a stream,
// counted from all that it printed there.
type Printed struct {
	Stream string    `json:"stream"`
	Offset uint64    `json:"offset_bytes"`
	Time   time.Time `json:"time"`
}

// Proc is all that is known of a proc: an object of "sigma ps --json" and "sigma inspect --json".
// /proc/PID has it in three files, but for Reason.
type Proc struct {
	Descriptor
	Standing
	Usage  Usage  `json:"usage"`
	Reason string `json:"reason,omitempty"` // why it waits, in one word of /sys/decisions; told by ps
}

// Descriptor is /proc/PID/descriptor: what was asked for.
type Descriptor struct {
	ID      string   `json:"id"`
	Realm   string   `json:"realm"`
	Name    string   `json:"name"`
	Program string   `json:"program"`
	Args    []string `json:"args"` // the first KiB of them
	Parent  string   `json:"parent,omitempty"`
	Class   string   `json:"class"`
	Cores   float64  `json:"reserved_cores,omitempty"` // 0 of a best-effort proc
	Memory  uint64   `json:"memory_bytes"`             // its limit
	Profile string   `json:"profile"`
	Near    string   `json:"near,omitempty"` // the machine where it should be; told by the machine where it was spawned
}

// Standing is what became of a proc so far. /proc/PID/status has it with the proc's id.
type Standing struct {
	Machine string  `json:"machine,omitempty"` // that runs it, or ran it
	State   string  `json:"state"`             // queued, starting, running or ended
	Frozen  bool    `json:"frozen"`
	Status  *Status `json:"status,omitempty"` // when it has ended
	Times   Times   `json:"times"`
	Timing  *Timing `json:"timing,omitempty"` // when it has started
}

// ProcStatus is /proc/PID/status.
type ProcStatus struct {
	ID string `json:"id"`
	Standing
}

// Status is how a proc ended.
type Status struct {
	Code     string `json:"code"`
	ExitCode int    `json:"exit_code"`
	Kind     string `json:"kind,omitempty"`
	Message  string `json:"message,omitempty"`
	Data     []byte `json:"data,omitempty"` // base64
}

// Times are moments of a start; those that were not reached are left out.
type Times struct {
	Spawned   *time.Time `json:"spawned,omitempty"`
	Placed    *time.Time `json:"placed,omitempty"`
	Contained *time.Time `json:"contained,omitempty"`
	Executed  *time.Time `json:"executed,omitempty"`
	Started   *time.Time `json:"started,omitempty"`
	Ended     *time.Time `json:"ended,omitempty"`
}

// ProcUsage is /proc/PID/usage.
type ProcUsage struct {
	Usage
	StdoutDropped uint64 `json:"stdout_dropped_bytes"` // of output_bytes, what was not kept
	StderrDropped uint64 `json:"stderr_dropped_bytes"`
}

// Usage is what a proc uses: of now for a proc that runs. What is of now only is 0 for others.
type Usage struct {
	UserSeconds   float64 `json:"user_seconds"`
	SystemSeconds float64 `json:"system_seconds"`
	Memory        uint64  `json:"memory_now_bytes"`
	MemoryPeak    uint64  `json:"memory_peak_bytes"`
	Tasks         uint32  `json:"tasks"`
	Output        uint64  `json:"output_bytes"`
	Traffic
}

// Traffic is what connections carried.
type Traffic struct {
	Sent     uint64 `json:"sent_bytes"`
	Received uint64 `json:"received_bytes"`
	Messages uint64 `json:"messages"`      // sent
	Egress   uint64 `json:"egress_bytes"`  // of those sent, to other machines
	Ingress  uint64 `json:"ingress_bytes"` // of those received, from other machines
}

// OfTraffic describes it.
func OfTraffic(t sigma.Traffic) Traffic {
	return Traffic{uint64(t.Sent), uint64(t.Received), t.Messages, uint64(t.Egress), uint64(t.Ingress)}
}

// Plus is both.
func (t Traffic) Plus(o Traffic) Traffic {
	return Traffic{t.Sent + o.Sent, t.Received + o.Received, t.Messages + o.Messages, t.Egress + o.Egress,
		t.Ingress + o.Ingress}
}

// RealmUsage is a line of /sys/usage: what a realm's procs have used of a machine in one hour.
type RealmUsage struct {
	Machine string    `json:"machine,omitempty"`
	Realm   string    `json:"realm"`
	From    time.Time `json:"from"` // of the hour
	Starts  uint64    `json:"starts"`
	Ended   uint64    `json:"ended"`
	CPU     float64   `json:"cpu_seconds"`
	Memory  float64   `json:"memory_byte_seconds"` // what procs had a right to, for as long as they had it
	Traffic           // of connections; egress_bytes are all that procs sent to other machines, and beyond the system

	// What sigmad of the machine did for the realm's procs: its processor time is divided by what
	// their requests cost.
	Requests  uint64  `json:"requests"`
	Served    float64 `json:"served_cpu_seconds"`
	ServedIn  uint64  `json:"served_in_bytes"` // of messages that came
	ServedOut uint64  `json:"served_out_bytes"`

	Services ServicesUse `json:"services"` // what the machine's services did for the realm

	Told *time.Time `json:"told,omitempty"` // when the machine said so, if it does not answer now
}

// Plus is both, from the earlier one's From on; the names are u's, and Told is left out.
func (u RealmUsage) Plus(o RealmUsage) RealmUsage {
	if o.From.Before(u.From) {
		u.From = o.From
	}
	u.Starts += o.Starts
	u.Ended += o.Ended
	u.CPU += o.CPU
	u.Memory += o.Memory
	u.Traffic = u.Traffic.Plus(o.Traffic)
	u.Requests += o.Requests
	u.Served += o.Served
	u.ServedIn += o.ServedIn
	u.ServedOut += o.ServedOut
	u.Services = u.Services.Plus(o.Services)
	u.Told = nil
	return u
}

// ServicesUse is what services did for a realm.
type ServicesUse struct {
	Named ServiceUse `json:"named"`
	S3d   ServiceUse `json:"s3d"`
	Dbd   ServiceUse `json:"dbd"`
}

// Of is the part of a service; nil of one that works for no realms.
func (s *ServicesUse) Of(service string) *ServiceUse {
	switch service {
	case "named":
		return &s.Named
	case "s3d":
		return &s.S3d
	case "dbd":
		return &s.Dbd
	}
	return nil
}

// Plus is both.
func (s ServicesUse) Plus(o ServicesUse) ServicesUse {
	return ServicesUse{s.Named.Plus(o.Named), s.S3d.Plus(o.S3d), s.Dbd.Plus(o.Dbd)}
}

// CPU is processor time in seconds.
func (s ServicesUse) CPU() float64 { return s.Named.CPU + s.S3d.CPU + s.Dbd.CPU }

// ServiceUse is what one service did for a realm.
type ServiceUse struct {
	Requests uint64  `json:"requests"`
	CPU      float64 `json:"cpu_seconds"` // its part of what the service used, by what its requests cost
	In       uint64  `json:"in_bytes"`    // of messages that came
	Out      uint64  `json:"out_bytes"`
}

// OfWork describes it.
func OfWork(w sigma.Work) ServiceUse {
	return ServiceUse{w.Requests, w.CPU.Seconds(), uint64(w.In), uint64(w.Out)}
}

// Plus is both.
func (s ServiceUse) Plus(o ServiceUse) ServiceUse {
	return ServiceUse{s.Requests + o.Requests, s.CPU + o.CPU, s.In + o.In, s.Out + o.Out}
}

// ProcSpent is a line of /sys/usage-procs: what a proc has used of a machine.
type ProcSpent struct {
	Machine string     `json:"machine"`
	Realm   string     `json:"realm"`
	Proc    string     `json:"proc"`
	Name    string     `json:"name"`
	Began   time.Time  `json:"began"`
	Ended   *time.Time `json:"ended,omitempty"` // nil = it runs, and what is told is of some seconds ago
	CPU     float64    `json:"cpu_seconds"`
	Memory  float64    `json:"memory_byte_seconds"`
	Egress  uint64     `json:"egress_bytes"`
}

// UsageMissing is a line of /sys/usage and /sys/usage-procs that stands for the lines of a machine
// that could not be asked.
type UsageMissing struct {
	Machine string `json:"machine"`
	Missing string `json:"missing"` // why
}

// Timing is the trace of a start. Phases follow one another without gaps.
type Timing struct {
	Total  float64 `json:"total_seconds"`
	Phases []Phase `json:"phases"`
}

// Phase is one of them.
type Phase struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// OfProc describes a proc.
func OfProc(p sigma.ProcInfo) Proc {
	profile := p.Profile
	if profile == "" {
		profile = sigma.ProfileSigma
	}
	return Proc{
		Descriptor: Descriptor{ID: string(p.ID), Realm: string(p.Realm), Name: p.Name, Program: p.Program,
			Args: append([]string{}, p.Args...), Parent: string(p.Parent),
			Class: p.Class.String(), Cores: float64(p.CPU) / 1000, Memory: uint64(p.Memory), Profile: string(profile)},
		Standing: Standing{Machine: string(p.Machine), State: p.State.String(), Frozen: p.Frozen,
			Status: OfStatus(p.Status),
			Times: Times{moment(p.Times.Spawned), moment(p.Times.Placed), moment(p.Times.Contained),
				moment(p.Times.Executed), moment(p.Times.Started), moment(p.Times.Ended)},
			Timing: OfTiming(p.Timing)},
		Usage: OfUsage(p.Usage),
	}
}

// moment is nil for one that was not reached.
func moment(t time.Time) *time.Time {
	if t.IsZero() || t.Unix() <= 0 {
		return nil
	}
	return &t
}

// OfStatus is nil for a proc that has not ended.
func OfStatus(s sigma.Status) *Status {
	if s.Code == sigma.StatusNone {
		return nil
	}
	j := &Status{Code: s.Code.String(), ExitCode: s.ExitCode, Message: s.Msg, Data: s.Data}
	if s.Kind != sigma.KindOther {
		j.Kind = s.Kind.String()
	}
	return j
}

// OfTiming is nil for a proc that has not started.
func OfTiming(t sigma.Timing) *Timing {
	if t.Total() == 0 {
		return nil
	}
	j := &Timing{Total: t.Total().Seconds()}
	for i, d := range t {
		j.Phases = append(j.Phases, Phase{sigma.Phase(i).String(), d.Seconds()})
	}
	return j
}

// OfUsage describes what a proc uses.
func OfUsage(u sigma.Usage) Usage {
	return Usage{u.UserTime.Seconds(), u.SystemTime.Seconds(), uint64(u.Memory), uint64(u.MemoryPeak), u.Tasks,
		uint64(u.Output), OfTraffic(u.Traffic)}
}
