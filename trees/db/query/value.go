package query

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Value is nil, bool, int64, uint64 (beyond the largest int64), float64, string, []byte or
// time.Time.
type Value struct{ V any }

// wrapped is a value that JSON has no word for.
type wrapped struct {
	Bytes *string `json:"bytes,omitempty"` // base64
	Time  *string `json:"time,omitempty"`  // RFC 3339 with nanoseconds
	Float *string `json:"float,omitempty"` // NaN, Inf, -Inf
}

// AppendValue appends v as JSON. What is none of Value's types becomes null.
func AppendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case bool:
		return strconv.AppendBool(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case uint64:
		return strconv.AppendUint(b, v, 10)
	case float64:
		return appendFloat(b, v)
	case string:
		if !utf8.ValidString(v) { // JSON would change it
			return AppendValue(b, []byte(v))
		}
		return appendString(b, v)
	case []byte:
		if v == nil {
			return append(b, "null"...)
		}
		b = append(b, `{"bytes":"`...)
		b = base64.StdEncoding.AppendEncode(b, v)
		return append(b, `"}`...)
	case time.Time:
		b = append(b, `{"time":"`...)
		b = v.AppendFormat(b, time.RFC3339Nano)
		return append(b, `"}`...)
	}
	return append(b, "null"...)
}

// appendFloat appends v so that it is no integer.
func appendFloat(b []byte, v float64) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		b = append(b, `{"float":"`...)
		b = strconv.AppendFloat(b, v, 'g', -1, 64)
		return append(b, `"}`...)
	}
	from := len(b)
	b = strconv.AppendFloat(b, v, 'g', -1, 64)
	if !bytes.ContainsAny(b[from:], ".e") {
		b = append(b, ".0"...)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(s) != nil {
		return append(b, "null"...)
	}
	return append(b, bytes.TrimSuffix(out.Bytes(), []byte("\n"))...)
}

// MarshalJSON implements json.Marshaler.
func (v Value) MarshalJSON() ([]byte, error) { return AppendValue(nil, v.V), nil }

// UnmarshalJSON implements json.Unmarshaler.
func (v *Value) UnmarshalJSON(text []byte) (err error) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return invalid("there is no value")
	}
	switch text[0] {
	case 'n':
		v.V = nil
	case 't', 'f':
		v.V = text[0] == 't'
	case '"':
		var s string
		err = json.Unmarshal(text, &s)
		v.V = s
	case '{':
		return v.unwrap(text)
	case '[':
		return invalid("an array is no value of SQL")
	default:
		v.V, err = number(string(text))
	}
	return err
}

// number is an integer if it is written like one and fits.
func number(text string) (any, error) {
	if !strings.ContainsAny(text, ".eE") {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, nil
		}
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			return n, nil
		}
		return nil, invalid("%.40s is no integer of 64 bits", text)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, invalid("%.40s is no float of 64 bits", text)
	}
	return f, nil
}

func (v *Value) unwrap(text []byte) error {
	var w wrapped
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return invalid("an object among values has one of bytes, time and float")
	}
	var err error
	switch {
	case w.Bytes != nil && w.Time == nil && w.Float == nil:
		v.V, err = base64.StdEncoding.DecodeString(*w.Bytes)
	case w.Time != nil && w.Bytes == nil && w.Float == nil:
		v.V, err = time.Parse(time.RFC3339Nano, *w.Time)
	case w.Float != nil && w.Bytes == nil && w.Time == nil:
		v.V, err = strconv.ParseFloat(*w.Float, 64)
	default:
		return invalid("an object among values has one of bytes, time and float")
	}
	if err != nil {
		return invalid("a value does not say what it is: %.100v", err)
	}
	return nil
}
