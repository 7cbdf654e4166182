package cli

import (
	"strings"

	"github.com/mattn/go-runewidth"
)

// width is how many columns of a terminal a text takes: a CJK character takes two. Characters whose width
// depends on the locale count one, as modern terminals show them.
func width(s string) int {
	for i := range len(s) {
		if s[i] >= 0x80 {
			c := runewidth.Condition{EastAsianWidth: false, StrictEmojiNeutral: true}
			return c.StringWidth(s)
		}
	}
	return len(s)
}

// printable keeps a terminal from obeying what is in a value.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || (r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069):
			return '\ufffd'
		}
		return r
	}, s)
}

// printableLines is printable for texts of several lines. Errors repeat what stood in arguments, manifests and answers.
func printableLines(s string) string {
	all := strings.Split(s, "\n")
	for i, line := range all {
		all[i] = printable(line)
	}
	return strings.Join(all, "\n")
}
