package kernel

import (
	"regexp"
	"strings"
	"testing"
)

var (
	metricType   = regexp.MustCompile(`^# TYPE (sigma_[a-z]+_?[a-z_]*) (counter|gauge|histogram)$`)
	metricSample = regexp.MustCompile(`^(sigma_[a-z_]+)(?:\{[^}]*\})? [0-9.e+-]+$`)
)

// Each metric is typed once, before its samples, and counters are called total.
func TestMetricsForm(t *testing.T) {
	text, err := boot(t).metrics()
	if err != nil {
		t.Fatal(err)
	}
	typed := map[string]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if m := metricType.FindStringSubmatch(line); m != nil {
			if typed[m[1]] != "" {
				t.Errorf("%s is typed twice", m[1])
			}
			typed[m[1]] = m[2]
			if (m[2] == "counter") != strings.HasSuffix(m[1], "_total") {
				t.Errorf("%s is a %s", m[1], m[2])
			}
			continue
		}
		m := metricSample.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("neither a type nor a sample: %q", line)
			continue
		}
		name := m[1]
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			if whole := strings.TrimSuffix(name, part); typed[whole] == "histogram" {
				name = whole
			}
		}
		if typed[name] == "" {
			t.Errorf("%s has no type before it", name)
		}
	}
	if len(typed) < 20 {
		t.Errorf("there are only %d metrics", len(typed))
	}
}
