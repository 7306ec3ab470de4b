// Picture draws the two paths of kvindex, for README.md: how events reach the index, and how
// a request reaches its pod.
package main

//go:generate go run . ../../docs/paths.svg

import (
	"bytes"
	"fmt"
	"html"
	"log"
	"os"
)

// box is a box with a title and lines of text; its own parts of kvindex are filled.
type box struct {
	x, y, w, h int
	own        bool
	title      string
	lines      []string
}

// arrow is a line from one point to another, with a text above its middle.
type arrow struct {
	x1, y1, x2, y2 int
	text           string
}

var boxes = []box{
	{x: 20, y: 40, w: 130, h: 130, title: "engines", lines: []string{"vLLM, SGLang", "pod a", "pod b", "pod c"}},
	{x: 255, y: 40, w: 150, h: 130, own: true, title: "events.Fleet", lines: []string{"finds the pods,", "connects, replays", "missed messages"}},
	{x: 500, y: 40, w: 160, h: 130, own: true, title: "index", lines: []string{"block -> pods", "by memory tier,", "28 bytes a block"}},
	{x: 20, y: 270, w: 130, h: 130, title: "client", lines: []string{"POST /v1/chat/", "completions"}},
	{x: 255, y: 270, w: 150, h: 130, own: true, title: "prompt", lines: []string{"chat template,", "tokens, block keys", "(prompt cache)"}},
	{x: 500, y: 270, w: 160, h: 130, own: true, title: "score", lines: []string{"tokens cached", "and predicted,", "for each pod"}},
	{x: 750, y: 270, w: 150, h: 130, own: true, title: "picker", lines: []string{"score and load", "-> one pod;", "reads the usage"}},
}

var arrows = []arrow{
	{150, 105, 255, 105, "KV events"},
	{405, 105, 500, 105, "changes"},
	{150, 335, 255, 335, "request"},
	{405, 335, 500, 335, "keys"},
	{580, 170, 580, 270, ""},
	{660, 335, 750, 335, ""},
}

const style = `
  text { font: 15px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
  .title { font-weight: 600 } .small { font-size: 13px; fill: #59636e } .path { font-size: 13px; text-anchor: start; fill: #59636e }
  rect { fill: #fff; stroke: #818b98; rx: 6 } .own { fill: #ddf4ff; stroke: #0969da }
  path { stroke: #59636e; stroke-width: 1.5; fill: none; marker-end: url(#end) } marker path { fill: #59636e; stroke: none; marker-end: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small, .path { fill: #9198a1 } rect { fill: #0d1117; stroke: #656c76 } .own { fill: #121d2f; stroke: #4493f8 }
    path { stroke: #9198a1 } marker path { fill: #9198a1 }
  }
`

// draw returns the picture as SVG.
func draw() []byte {
	var b bytes.Buffer
	text := func(class string, x, y int, s string) {
		fmt.Fprintf(&b, "<text class=%q x=\"%d\" y=\"%d\">%s</text>\n", class, x, y, html.EscapeString(s))
	}
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 420" role="img" aria-labelledby="title desc">
<title id="title">The write path and the read path of kvindex</title>
<desc id="desc">Engines publish KV events. A Fleet receives them and the index records which pod holds which block.
A request becomes tokens and block keys; the index scores each pod; the picker adds the load and picks one pod.</desc>
<style>` + style + `</style>
<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>
`)
	text("path", 20, 25, "write path: the engines' own events")
	text("path", 20, 255, "read path: some microseconds")
	for _, o := range boxes {
		class := ""
		if o.own {
			class = "own"
		}
		fmt.Fprintf(&b, "<rect class=%q x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", class, o.x, o.y, o.w, o.h)
		text("title", o.x+o.w/2, o.y+30, o.title)
		for i, line := range o.lines {
			text("small", o.x+o.w/2, o.y+58+20*i, line)
		}
	}
	for _, a := range arrows {
		fmt.Fprintf(&b, "<path d=\"M%d %d %d %d\"/>\n", a.x1, a.y1, a.x2, a.y2)
		if a.text != "" {
			text("small", (a.x1+a.x2)/2, a.y1-8, a.text)
		}
	}
	// The request goes to the pod that was picked.
	b.WriteString("<path d=\"M825 270 825 215 85 215 85 170\"/>\n")
	text("small", 330, 207, "the request goes to the picked pod")
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: picture FILE")
	}
	if err := os.WriteFile(os.Args[1], draw(), 0o644); err != nil {
		log.Fatal(err)
	}
}
