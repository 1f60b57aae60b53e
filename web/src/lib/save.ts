/** Gives the browser a file. */
export function saveFile(name: string, text: string, media: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: media }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
