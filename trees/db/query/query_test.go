package query

import (
	"bytes"
	"io"
	"math"
	"reflect"
	"testing"
	"time"
)

// Values come out of their text as they went in, with their type.
func TestValues(t *testing.T) {
	at := time.Date(2026, 11, 22, 4, 5, 6, 7, time.FixedZone("", 3600))
	for _, v := range []any{nil, true, false, int64(math.MinInt64), int64(math.MaxInt64), uint64(math.MaxUint64), 1.0,
		1e300, -0.1, math.Inf(-1), "", "a\x00\"<>\u2028ü", []byte{}, []byte{0, 255}, at} {
		var got Value
		if err := got.UnmarshalJSON(AppendValue(nil, v)); err != nil {
			t.Errorf("%#v: %v", v, err)
		}
		if g, ok := got.V.(time.Time); ok && g.Equal(at) {
			continue
		}
		if !reflect.DeepEqual(got.V, v) {
			t.Errorf("got %#v, want %#v", got.V, v)
		}
	}
	var nan, bad Value
	if err := nan.UnmarshalJSON(AppendValue(nil, math.NaN())); err != nil || !math.IsNaN(nan.V.(float64)) {
		t.Errorf("got %v, %v for NaN", nan, err)
	}
	if bad.UnmarshalJSON(AppendValue(nil, "\xff")); !reflect.DeepEqual(bad.V, []byte{255}) {
		t.Errorf("got %#v for text that is none, want bytes", bad.V)
	}
}

// No password gets into what is said of a URL.
func TestCheckURL(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://u:geheim@h/d": "h:5432", "postgresql://u:geheim@h:1/d?sslmode=require": "h:1",
		"mysql://u:geheim@[::1]/d": "[::1]:3306", "mariadb://u:geheim@h/d?tls=true": "h:3306",
		"": "", "oracle://u:geheim@h/d": "", "postgres://u:geheim@h": "", "postgres://u:geheim@/d": "",
		"postgres://u:geheim@a,b/d": "", "postgres://u:ge%heim@h/d": "", "postgres://u:geheim@h/d?sslkey=/x": "",
		"postgres://u:geheim@h/d?host=x": "", "mysql://u:geheim@h/d?allowAllFiles=true": "", "geheim": "",
	} {
		got, err := CheckURL(url)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v", url, got, err)
		}
		if err != nil && bytes.Contains([]byte(err.Error()), []byte("heim")) {
			t.Errorf("%q tells the password", err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"select 1",
		`{"sql": "select ?", "args": [1, 1.5, null, true, "x", {"bytes": "AA=="}, {"time": "2026-11-22T04:05:06Z"}, {"float": "NaN"}]}`, `{"transaction": "begin", "isolation": "serializable"}`, "{", `{"statement": 1, "args": [[]]}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := Parse(text); err == nil && r.SQL == "" && r.Statement == 0 && r.Release == 0 &&
			r.Transaction == "" {
			t.Errorf("%q asks for nothing", text)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	whole := AppendEnd(AppendRow(AppendColumns(nil, []Column{{Name: "a", Type: "INT"}}), []any{int64(1)}), End{Rows: 1})
	f.Add(whole)
	f.Add(whole[:len(whole)-3])
	f.Add(AppendFailure(nil, Failure{Kind: "lost", Message: "m"}))
	f.Add([]byte("[1]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := Read(bytes.NewReader(text))
		for rows := 0; err == nil; rows++ {
			if err = a.Next(make([]any, len(a.Columns()))); err == io.EOF && a.End() == nil {
				t.Error("an answer ends without its end")
			}
			if rows > len(text) {
				t.Fatal("there are more rows than bytes")
			}
		}
	})
}
