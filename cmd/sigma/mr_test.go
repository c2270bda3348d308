package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestJobs lists a job by its record, and shows the result of one that has ended, once.
func TestJobs(t *testing.T) {
	f := newFake(t)
	if got := f.ok("mr", "ls"); strings.Count(got, "\n") != 1 {
		t.Errorf("listed without jobs: %s", got)
	}
	want(t, f.sigma("mr", "attach", "job-x"), 1, "", "there is no such job")
	want(t, f.sigma("mr", "attach", "a/b"), 2, "", "name contains a /")
	f.ok("mkdir", "-p", "/mr/job-x")
	record := func(name, text string) { f.with([]byte(text), "put", "-", "/mr/job-x/"+name) }
	record("job", "prefix \"/in/log-\"\noutput \"/out\"\n")
	record("progress", "maps 3\nmaps_done 2\nreduces 1\n")
	if words := strings.Join(strings.Fields(f.ok("mr", "ls")), " "); !strings.Contains(words, "job-x running 2/3 0/1") {
		t.Errorf("listed: %s", words)
	}
	record("result", "state \"ok\"\nfiles 1\nrecords 4\nkeys 3\nmaps 3\nmaps_run 4\nreduces 1\nleaders 2\n")
	var jobs []struct {
		ID, State string
		Job       struct{ Prefix, Output string }
		Progress  struct {
			Done int `json:"maps_done"`
		}
	}
	if err := json.Unmarshal([]byte(f.ok("mr", "ls", "--json")), &jobs); err != nil || len(jobs) != 1 ||
		jobs[0].State != "ok" || jobs[0].Job.Prefix != "/in/log-" || jobs[0].Progress.Done != 2 {
		t.Errorf("listed: %+v, %v", jobs, err)
	}
	got := f.ok("mr", "attach", "job-x")
	for _, part := range []string{"emitted 4 keys (3 different) in 1 file,", "1 map repeated, 2 coordinators have led",
		"output: /out"} {
		if !strings.Contains(got, part) {
			t.Errorf("attach gave %q, without %q", got, part)
		}
	}
	if got := f.ok("mr", "ls"); strings.Contains(got, "job-x") {
		t.Errorf("listed again: %s", got)
	}
}

// TestJobUsage refuses what cannot be meant, before anything is started.
func TestJobUsage(t *testing.T) {
	f := newFake(t)
	for line, text := range map[string]string{
		"mr wordcount --output /out":                              "--input is missing",
		"mr run --input /in --prefix /in/a --output /out p":       "not more",
		"mr run --manifest /list p":                               "--output is missing",
		"mr wordcount --input /in --output /out --maps 0":         "must be at least 1",
		"mr run --input /in --output /out --reduces 99999 /bin/p": "99999 reduces",
		"mr run --input /in --output /out":                        "an argument is missing",
	} {
		want(t, f.sigma(strings.Fields(line)...), 2, "", text)
	}
	if procs := f.spawned(); len(procs) > 0 {
		t.Errorf("%d procs were started", len(procs))
	}
}
