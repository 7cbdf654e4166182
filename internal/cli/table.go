package cli

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

const (
	gap     = "   "
	nothing = "-"
)

// Table is rows under headings, without borders, so that grep and awk work on it.
type Table struct {
	Heads []string
	Rows  [][]string
	// Least are the least widths of the columns, as a table before had them.
	Least []int
	// NoHeader leaves the headings out.
	NoHeader bool
	// Indent is written before each line.
	Indent string
	// Colour, if not nil, paints a padded cell of a column.
	Colour func(column int, value, padded string) string
}

// Write writes the table. Columns are as wide as their widest cell; the last one is not padded.
func (t Table) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	widths, rows := t.widths(), t.lines()
	for n, row := range rows {
		var line strings.Builder
		line.WriteString(t.Indent)
		for i := range widths {
			value := shown(row, i)
			cell := value
			if i < len(widths)-1 {
				cell += strings.Repeat(" ", widths[i]-width(value)) + gap
			}
			if t.Colour != nil && (n > 0 || t.NoHeader) {
				cell = t.Colour(i, value, cell)
			}
			line.WriteString(cell)
		}
		fmt.Fprintln(out, strings.TrimRight(line.String(), " "))
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

func (t Table) lines() [][]string {
	if t.NoHeader {
		return t.Rows
	}
	return append([][]string{t.Heads}, t.Rows...)
}

// widths are those of the columns.
func (t Table) widths() []int {
	widths := make([]int, len(t.Heads))
	copy(widths, t.Least)
	for _, row := range t.lines() {
		for i := range widths {
			widths[i] = max(widths[i], width(shown(row, i)))
		}
	}
	return widths
}

// shown is a cell as a terminal may see it.
func shown(row []string, i int) string {
	if i >= len(row) || row[i] == "" {
		return nothing
	}
	return printable(row[i])
}

// CSV writes the table as RFC 4180 has it; empty cells stay empty.
func (t Table) CSV(w io.Writer) error {
	out := csv.NewWriter(w)
	if err := out.WriteAll(t.lines()); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// sort orders the rows by a column: numbers as numbers, the rest as text; a leading '-' turns it around.
func (t Table) sort(column int, down bool) {
	slices.SortStableFunc(t.Rows, func(x, y []string) int {
		c := compare(x[column], y[column])
		if down {
			return -c
		}
		return c
	})
}

func compare(x, y string) int {
	a, errA := strconv.ParseFloat(leading(x), 64)
	b, errB := strconv.ParseFloat(leading(y), 64)
	if errA == nil && errB == nil && a != b {
		if a < b {
			return -1
		}
		return 1
	}
	return strings.Compare(x, y)
}

// leading is the number that a text begins with: "4/16" is 4.
func leading(s string) string {
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		return s
	}
	return s[:end]
}
