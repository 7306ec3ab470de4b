package main

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

const (
	width, height            = 760, 360
	left, right, top, bottom = 56, 20, 78, 44
	window                   = time.Minute // each point of a line is the hit rate of a window
	step                     = 10 * time.Second
)

// style has the colours of the lines in the order of the rows, for light and dark pages.
const style = `<style>
text{font:13px system-ui,sans-serif;fill:#24292f}.page{fill:#fff}.grid{stroke:#d0d7de}.away{fill:#d0d7de;opacity:.6}
path{fill:none;stroke-width:2.5}
.l0{stroke:#8c5a00;stroke-dasharray:2 4}.l1{stroke:#a03070;stroke-dasharray:7 4}.l2{stroke:#0062a8;stroke-dasharray:12 3}.l3{stroke:#007a50}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}.page{fill:#0d1117}.grid{stroke:#30363d}.away{fill:#30363d}
.l0{stroke:#e0a030}.l1{stroke:#e080b8}.l2{stroke:#58a6ff}.l3{stroke:#40c890}}
</style>
`

// plot draws the hit rate of each row over time as an SVG.
func plot(rows []row, seed uint64, restart time.Duration) []byte {
	var end time.Duration
	for _, o := range rows[0].outcomes {
		end = max(end, o.at)
	}
	x := func(t time.Duration) float64 {
		return left + (width-left-right)*float64(t)/float64(end)
	}
	y := func(percent float64) float64 { return height - bottom - (height-top-bottom)*percent/100 }

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="title desc">`+"\n", width, height)
	fmt.Fprintf(&b, "<title id=\"title\">Hit rate over time, by routing policy</title>\n<desc id=\"desc\">Prompt tokens that were cached, in %% of all, in the last %.0f s.", window.Seconds())
	for _, r := range rows {
		fmt.Fprintf(&b, " %s: %.1f%% over the whole time.", r.name, r.hitRate())
	}
	fmt.Fprintf(&b, "</desc>\n%s<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", style, width, height)
	fmt.Fprintf(&b, `<text x="%d" y="24">Hit rate of prompt tokens in the last %.0f s (examples/quickstart -seed %d)</text>`+"\n", left, window.Seconds(), seed)

	fmt.Fprintf(&b, `<rect class="away" x="%.1f" y="%d" width="%.1f" height="%d"/>`+"\n", x(restart), top, x(outage)-left, height-top-bottom)
	fmt.Fprintf(&b, `<text x="%.1f" y="%d">pod-0 restarts</text>`+"\n", x(restart+outage)+6, height-bottom-8)
	for p := 0.0; p <= 100; p += 25 {
		fmt.Fprintf(&b, `<path class="grid" style="stroke-width:1" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%.0f%%</text>`+"\n", left, y(p), width-right, left-8, y(p)+4, p)
	}
	for t := time.Duration(0); t <= end; t += time.Minute {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%.0f min</text>`+"\n", x(t), height-bottom+20, t.Minutes())
	}
	for i, r := range rows {
		at := left + i*170
		fmt.Fprintf(&b, `<path class="l%d" d="M%d 50h28"/><text x="%d" y="54">%s %.1f%%</text>`+"\n", i, at, at+36, r.name, r.hitRate())
		fmt.Fprintf(&b, `<path class="l%d" d="`, i)
		command := "M"
		for t := window; t <= end; t += step {
			during := slices.DeleteFunc(slices.Clone(r.outcomes), func(o outcome) bool { return o.at <= t-window || o.at > t })
			if len(during) > 0 {
				fmt.Fprintf(&b, "%s%.1f %.1f", command, x(t), y(sum(during).hitRate()))
				command = "L"
			}
		}
		b.WriteString("\"/>\n")
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
