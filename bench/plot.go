package bench

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// curve is a line of a plot, through points by rising x.
type curve struct {
	name string
	x, y []float64
}

// axes say what a plot is of.
type axes struct{ title, x, y string }

// plotCurves draws curves as SVG, with both axes from zero.
func plotCurves(a axes, curves []curve) string {
	const width, height = 640, 320
	colours := [...]string{"#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#9c6b4e"}
	mostX, mostY := 0.0, 0.0
	for _, c := range curves {
		for i := range c.x {
			mostX, mostY = max(mostX, c.x[i]), max(mostY, c.y[i])
		}
	}
	stepX, stepY := step(mostX), step(mostY)
	mostX, mostY = math.Ceil(mostX/stepX)*stepX, math.Ceil(mostY/stepY)*stepY
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="-60 -40 %d %d" font-family="sans-serif" font-size="11">`+"\n",
		width+220, height+90)
	fmt.Fprintf(&b, `<text x="0" y="-20" font-size="13">%s</text>`+"\n", a.title)
	for x := 0.0; x <= mostX+stepX/2; x += stepX {
		at := x / mostX * width
		fmt.Fprintf(&b,
			`<line x1="%.1f" y1="0" x2="%.1f" y2="%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%.4g</text>`+"\n", at, at, height, at, height+16, x)
	}
	for y := 0.0; y <= mostY+stepY/2; y += stepY {
		at := height - y/mostY*height
		fmt.Fprintf(&b,
			`<line x1="0" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/><text x="-6" y="%.1f" text-anchor="end">%.4g</text>`+"\n", at, width, at, at+4, y)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text><text x="-50" y="-6">%s</text>`+"\n", width/2,
		height+36, a.x, a.y)
	for i, c := range curves {
		colour := colours[i%len(colours)]
		var points strings.Builder
		for j := range c.x {
			fmt.Fprintf(&points, "%.1f,%.1f ", c.x[j]/mostX*width, height-c.y[j]/mostY*height)
		}
		fmt.Fprintf(&b,
			`<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%d" y="%d" fill="%s">%s</text>`+
				"\n", strings.TrimSpace(points.String()), colour, width+8, 12+16*i, colour, c.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// step is between two marks of an axis to most: 1, 2 or 5 times a power of ten.
func step(most float64) float64 {
	if !(most > 0) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most/5)))
	for _, n := range [...]float64{1, 2, 5} {
		if most/(n*power) <= 6 {
			return n * power
		}
	}
	return 10 * power
}

// keepPlot writes a plot beside the raw samples, if these are kept. A bench of more than one plot
// names the part.
func (r *Run) keepPlot(svg string, part ...string) error {
	if r.Results == "" {
		return nil
	}
	if err := os.MkdirAll(r.Results, 0o755); err != nil {
		return err
	}
	name := strings.Join(append([]string{r.bench}, part...), "-")
	path := filepath.Join(r.Results, name+"-"+time.Now().UTC().Format("20060102-150405")+".svg")
	r.note("plot: %s", path)
	return os.WriteFile(path, []byte(svg), 0o644)
}
